//go:build !unix

package gguf

import (
	"io"
	"os"
)

// mapFile reads the file: a system without mmap can hold the small models and inspect the others slowly.
func mapFile(f *os.File, size int64) (data []byte, unmap func() error, err error) {
	data, err = io.ReadAll(io.LimitReader(f, size))
	return data, func() error { return nil }, err
}

func inode(os.FileInfo) uint64 { return 0 }

func release([]byte) {}
