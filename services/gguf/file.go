package gguf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// Tensor describes one tensor of a file.
type Tensor struct {
	Name   string
	Type   Type
	Shape  []int64 // ggml order: Shape[0] is contiguous; 1 to 4 dimensions, each at least 1
	Bytes  int64   // size of the data without padding
	Shard  int     // index into File.Paths
	Offset int64   // first byte of the data in that shard's file
}

// Elems is the number of values.
func (t Tensor) Elems() int64 {
	n := int64(1)
	for _, ne := range t.Shape {
		n *= ne // cannot overflow: checked when the file was parsed
	}
	return n
}

// File is an open model: one GGUF file or all shards of one. It is safe for concurrent use; Close must come last.
type File struct {
	shards  []*shard
	closers []func() error
	stats   []fileStat
	tensors []Tensor
	byName  map[string]int
}

// fileStat identifies the content of a shard for the digest cache.
type fileStat struct {
	path    string // as opened
	size    int64
	mtimeNs int64
	inode   uint64 // 0 where the system has none
	part    string // of a digest of a part: which one; empty for the whole file
}

func statOf(path string, st os.FileInfo) fileStat {
	return fileStat{path: path, size: st.Size(), mtimeNs: st.ModTime().UnixNano(), inode: inode(st)}
}

// shardName matches the file name of a shard: base, number (from 1), count.
var shardName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.gguf$`)

// ShardPaths are the paths of a model's files from the first one's; ok is false when that is not named like the first
// of so many.
func ShardPaths(first string, count int) (paths []string, ok bool) {
	m := shardName.FindStringSubmatch(filepath.Base(first))
	if m == nil || m[2] != "00001" || m[3] != fmt.Sprintf("%05d", count) {
		return nil, false
	}
	paths = append(paths, first)
	for i := 2; i <= count; i++ {
		paths = append(paths, filepath.Join(filepath.Dir(first), fmt.Sprintf("%s-%05d-of-%05d.gguf", m[1], i, count)))
	}
	return paths, true
}

// Open maps the model at path and checks it. For a sharded model path must be the first shard; the others are found
// beside it. A folder with config.json and model.safetensors, or a .safetensors file with a config.json beside it, is
// opened as a DFlash draft. Complaints about the content match ErrInvalid, others come from the file system.
func Open(path string) (*File, error) {
	f := &File{}
	if err := f.openAll(path); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *File) openAll(path string) error {
	if file, ok := safetensorsPath(path); ok {
		return f.openSafetensors(file)
	}
	if err := f.openShard(path); err != nil {
		return err
	}
	count, err := f.shardCount()
	if err != nil {
		return atPath(path, err)
	}
	if count > 1 {
		paths, ok := ShardPaths(path, count)
		if !ok {
			return atPath(path, invalid("split.count", "first of %d shards must be named like model-00001-of-%05d.gguf",
				count, count))
		}
		for i, p := range paths[1:] {
			if err := f.openShard(p); err != nil {
				return err
			}
			if err := f.checkShardNumber(i+1, count); err != nil {
				return atPath(p, err)
			}
		}
	}
	return atPath(path, f.index())
}

// OpenBytes reads a model that is already in memory. data must not change while the File is used. A sharded model is
// refused: its other files cannot be found.
func OpenBytes(data []byte) (*File, error) {
	s, err := parse(data)
	if err != nil {
		return nil, err
	}
	f := &File{shards: []*shard{s}}
	count, err := f.shardCount()
	if err != nil {
		return nil, err
	}
	if count > 1 {
		return nil, invalid("split.count", "%d shards cannot be opened from memory", count)
	}
	if err := f.index(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *File) openShard(path string) error { return f.mapShard(path, parse) }

// mapShard maps a file and appends what parse makes of it to the shards.
func (f *File) mapShard(path string, parse func(data []byte) (*shard, error)) error {
	fd, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	defer fd.Close() // the mapping stays valid without the descriptor
	st, err := fd.Stat()
	if err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("gguf: %s: not a regular file", path)
	}
	data, unmap, err := mapFile(fd, st.Size())
	if err != nil {
		return err
	}
	f.closers = append(f.closers, unmap)
	s, err := parse(data)
	if err != nil {
		return atPath(path, err)
	}
	s.path = path
	f.shards = append(f.shards, s)
	f.stats = append(f.stats, statOf(path, st))
	return nil
}

// Release takes the pages of the mapped files that were read so far out of the process's memory. They come back when
// they are read again, so it may be called at any time before Close.
func (f *File) Release() {
	for i := range f.shards {
		if i < len(f.stats) { // not those from memory
			release(f.shards[i].data)
		}
	}
}

// atPath adds the file name to a format error.
func atPath(path string, err error) error {
	var fe *FormatError
	if errors.As(err, &fe) && fe.Path == "" {
		fe.Path = path
	}
	return err
}

// shardCount reads split.count of the first shard (1 when absent) and checks that it is number 0.
func (f *File) shardCount() (int, error) {
	count, ok, err := f.Uint("split.count")
	if err != nil {
		return 0, err
	}
	if !ok {
		return 1, nil
	}
	if count < 1 || count > 99999 {
		return 0, invalid("split.count", "%d shards", count)
	}
	no, ok, err := f.Uint("split.no")
	if err != nil {
		return 0, err
	}
	if !ok || no != 0 {
		return 0, invalid("split.no", "this is shard %s of %d: open the first one (…-00001-of-%05d.gguf)",
			strconv.FormatUint(no+1, 10), count, count)
	}
	return int(count), nil
}

func (f *File) checkShardNumber(i, count int) error {
	s := f.shards[i]
	for key, want := range map[string]uint64{"split.no": uint64(i), "split.count": uint64(count)} {
		got, ok := s.values[key].uintIfSet()
		if !ok || got != want {
			return invalid(key, "is %d, want %d", got, want)
		}
	}
	return nil
}

// uintIfSet is Uint for a value that may be the zero Value of a missing key.
func (v Value) uintIfSet() (uint64, bool) {
	if v.raw == nil {
		return 0, false
	}
	return v.Uint()
}

// index joins the tensors of all shards.
func (f *File) index() error {
	f.byName = make(map[string]int)
	for i, s := range f.shards {
		for _, t := range s.tensors {
			if _, dup := f.byName[t.Name]; dup {
				return invalid(t.Name, "tensor is in two shards")
			}
			t.Shard = i
			f.byName[t.Name] = len(f.tensors)
			f.tensors = append(f.tensors, t)
		}
	}
	total, ok, err := f.Uint("split.tensors.count")
	if err != nil {
		return err
	}
	if ok && total != uint64(len(f.tensors)) {
		return invalid("split.tensors.count", "is %d but the shards hold %d tensors", total, len(f.tensors))
	}
	return nil
}

// Close unmaps the files. Slices from Data and Values must not be used afterwards. A second Close does nothing.
func (f *File) Close() error {
	var errs []error
	for _, c := range f.closers {
		errs = append(errs, c())
	}
	f.closers, f.shards, f.tensors, f.byName = nil, nil, nil, nil
	return errors.Join(errs...)
}

// Paths lists the files of the model in shard order, the one that an engine opens first; of a safetensors draft
// config.json comes second. It is empty for a model opened from memory.
func (f *File) Paths() []string {
	out := make([]string, len(f.stats))
	for i, s := range f.stats {
		out[i] = s.path
	}
	return out
}

// Size is the total size of the model's files in bytes.
func (f *File) Size() int64 {
	n := int64(0)
	for _, s := range f.shards {
		n += int64(len(s.data))
	}
	return n
}

// Version is the container version, 2 or 3; 0 for safetensors.
func (f *File) Version() int { return int(f.shards[0].version) }

// Tensors lists all tensors in file order. The caller must not change the shapes.
func (f *File) Tensors() []Tensor { return slices.Clone(f.tensors) }

// Tensor finds a tensor by name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Data gives the bytes of a tensor of this file, straight from the mapping: read-only, valid until Close, aligned to
// general.alignment within the file and no better.
func (f *File) Data(t Tensor) []byte {
	end := t.Offset + t.Bytes
	return f.shards[t.Shard].data[t.Offset:end:end]
}
