//go:build unix

package gguf

import (
	"fmt"
	"math"
	"os"
	"syscall"
)

// mapFile maps the whole file read-only. A file that shrinks while it is mapped makes later reads fault; model files
// are replaced by rename, never in place, so this is accepted.
func mapFile(f *os.File, size int64) (data []byte, unmap func() error, err error) {
	if size > math.MaxInt {
		return nil, nil, fmt.Errorf("gguf: %s: %d bytes do not fit into the address space", f.Name(), size)
	}
	if size == 0 {
		return nil, func() error { return nil }, nil // mmap refuses length zero; parse rejects the file
	}
	data, err = syscall.Mmap(int(f.Fd()), 0, int(size), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("gguf: map %s: %w", f.Name(), err)
	}
	return data, func() error { return syscall.Munmap(data) }, nil
}

// inode of a file.
func inode(st os.FileInfo) uint64 {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return uint64(s.Ino) //nolint:unconvert // narrower on some systems
	}
	return 0
}

// release takes the pages of a mapping out of the process; they are mapped again when they are read.
func release(data []byte) {
	if len(data) > 0 {
		_ = syscall.Madvise(data, syscall.MADV_DONTNEED)
	}
}
