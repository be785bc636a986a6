//go:build !linux

package shmstream

import (
	"errors"
	"time"
)

// Elsewhere streams stay with gRPC: no region is ever made or opened.
type region struct{}

var errUnsupported = errors.New("shared memory streams need Linux")

func newRegion() (*region, error)         { return nil, errUnsupported }
func openRegion(string) (*region, error)  { return nil, errUnsupported }
func (*region) name() string              { return "" }
func (*region) pipe(int) pipe             { return pipe{} }
func (*region) hide()                     {}
func (*region) unmap()                    {}
func wait(*uint32, uint32, time.Duration) {}
func wake(*uint32)                        {}
