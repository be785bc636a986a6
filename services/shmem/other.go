//go:build !linux

package shmem

import "errors"

// File is never made or opened here.
type File struct{ Memory []byte }

var errUnsupported = errors.New("shared memory needs Linux")

func New(string, int) (*File, error)  { return nil, errUnsupported }
func Open(string, int) (*File, error) { return nil, errUnsupported }
func (*File) Name() string            { return "" }
func (*File) Hide()                   {}
func (*File) Close()                  {}
