package gguf

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/tandem-inference/tandem/services/wholefile"
)

// record keeps digests in a folder, one small file for each path of a model file and for each part of it. Processes
// share it without locks: an entry appears whole, by a rename, and one that does not describe the file as it is now
// counts as absent.
type record struct {
	dir      string
	complain func(error)
	once     sync.Once
}

// entry is the content of a record's file.
type entry struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	MTime  int64  `json:"mtime_ns"`
	Inode  uint64 `json:"inode"`
	Part   string `json:"part,omitempty"`
	SHA256 string `json:"sha256"`
}

// RememberDigests keeps the digests of model files in dir from now on, so that other processes and later starts need
// not read the files. complain is told once when dir cannot be written; digests are computed all the same. An empty dir
// ends it.
func RememberDigests(dir string, complain func(error)) {
	digests.mu.Lock()
	defer digests.mu.Unlock()
	digests.record = nil
	if dir != "" {
		digests.record = &record{dir: dir, complain: complain}
	}
}

// file that holds the entry of a path, or of a part of the file there.
func (r *record) file(st fileStat) string {
	name := st.path
	if st.part != "" {
		name += "\x00" + st.part
	}
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(r.dir, hex.EncodeToString(sum[:16])+".json")
}

// read returns the digest of the file that st describes.
func (r *record) read(st fileStat) (string, bool) {
	if r == nil {
		return "", false
	}
	text, err := os.ReadFile(r.file(st))
	if err != nil {
		return "", false
	}
	var e entry
	if json.Unmarshal(text, &e) != nil || (fileStat{e.Path, e.Size, e.MTime, e.Inode, e.Part}) != st {
		return "", false
	}
	if raw, err := hex.DecodeString(e.SHA256); err != nil || len(raw) != sha256.Size {
		return "", false
	}
	return e.SHA256, true
}

func (r *record) write(st fileStat, sum string) {
	if r == nil {
		return
	}
	if err := r.put(st, sum); err != nil {
		r.once.Do(func() { r.complain(fmt.Errorf("digests of model files cannot be kept: %w", err)) })
	}
}

func (r *record) put(st fileStat, sum string) error {
	text, err := json.Marshal(entry{st.path, st.size, st.mtimeNs, st.inode, st.part, sum})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return err
	}
	return wholefile.Write(r.file(st), append(text, '\n'))
}
