package gguf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// ErrChanged is a file that is not the one any more that was opened.
var ErrChanged = errors.New("the model file has changed since it was opened")

// Part is a file that can be read without being written anywhere: some tensors of a model with its metadata, or one of
// the model's files. The same tensors of the same model give the same bytes, whatever else the model's files hold.
type Part struct {
	head   []byte
	pieces []piece // in order; zeros lie between them
	size   int64
	stats  []fileStat
}

// piece says where bytes of a part lie.
type piece struct {
	at, bytes int64
	shard     int
	from      int64
}

// Part returns a GGUF file of the named tensors, in the order of f, and of all metadata but what says how f is divided.
func (f *File) Part(names []string) (*Part, error) {
	if f.Version() == 0 {
		return nil, invalid("", "is no GGUF file")
	}
	w := NewWriter()
	for _, key := range f.shards[0].keys {
		if strings.HasPrefix(key, "split.") {
			continue
		}
		if err := w.PutValue(key, f.shards[0].values[key]); err != nil {
			return nil, err
		}
	}
	var sources []Tensor
	for _, t := range f.tensors {
		if !slices.Contains(names, t.Name) {
			continue
		}
		if err := w.AddTensor(t.Name, t.Type, t.Shape, nil); err != nil {
			return nil, err
		}
		sources = append(sources, t)
	}
	if len(sources) != len(names) {
		return nil, invalid("", "has %d of %d tensors", len(sources), len(names))
	}
	head, end, err := w.head()
	if err != nil {
		return nil, err
	}
	p := &Part{head: head, size: int64(len(head)) + end, stats: f.stats}
	for i, t := range w.tensors {
		p.pieces = append(p.pieces, piece{int64(len(head)) + t.Offset, t.Bytes, sources[i].Shard, sources[i].Offset})
	}
	return p, nil
}

// Shard returns one of the model's files, byte for byte.
func (f *File) Shard(i int) (*Part, error) {
	if f.Version() == 0 || i < 0 || i >= len(f.stats) {
		return nil, invalid("", "has no GGUF shard %d", i)
	}
	size := f.stats[i].size
	return &Part{size: size, pieces: []piece{{0, size, i, 0}}, stats: f.stats}, nil
}

// Size in bytes.
func (p *Part) Size() int64 { return p.size }

// Open opens the model's files for reading. It fails with ErrChanged when they are others by now.
func (p *Part) Open() (*PartReader, error) {
	r := &PartReader{part: p, files: make([]*os.File, len(p.stats))}
	for i, st := range p.stats {
		file, err := os.Open(st.path)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrChanged, err), r.Close())
		}
		r.files[i] = file
	}
	if err := r.Unchanged(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// PartReader reads a Part. It reads files, not their mappings: their pages are not the process's memory, and a file
// that becomes shorter is an error.
type PartReader struct {
	part  *Part
	files []*os.File
}

// Close closes the files.
func (r *PartReader) Close() error {
	var errs []error
	for _, f := range r.files {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// Unchanged returns ErrChanged when a file was written to, or replaced, since the model was opened.
func (r *PartReader) Unchanged() error {
	for i, st := range r.part.stats {
		info, err := os.Stat(st.path)
		own, oerr := r.files[i].Stat()
		if err != nil || oerr != nil || statOf(st.path, info) != st || statOf(st.path, own) != st {
			return fmt.Errorf("%w: %s", ErrChanged, st.path)
		}
	}
	return nil
}

// ReadAt implements io.ReaderAt.
func (r *PartReader) ReadAt(b []byte, off int64) (n int, err error) {
	p := r.part
	if off < 0 || off > p.size {
		return 0, fmt.Errorf("gguf: byte %d of a part of %d", off, p.size)
	}
	short := int64(len(b)) > p.size-off
	if short {
		b = b[:p.size-off]
	}
	clear(b)
	if off < int64(len(p.head)) {
		copy(b, p.head[off:])
	}
	i, _ := slices.BinarySearchFunc(p.pieces, off, func(c piece, off int64) int {
		if c.at+c.bytes <= off {
			return -1
		}
		return 1
	})
	end := off + int64(len(b))
	for ; i < len(p.pieces) && p.pieces[i].at < end; i++ {
		c := p.pieces[i]
		from, to := max(off, c.at), min(end, c.at+c.bytes)
		if _, err := r.files[c.shard].ReadAt(b[from-off:to-off], c.from+from-c.at); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrChanged, err)
		}
	}
	if short {
		return len(b), io.EOF
	}
	return len(b), nil
}
