// Package transfer sends files to other processes in pieces, and receives them within bounds: whatever a peer sends or
// fails to send, it cannot fill the disk, keep a file open for ever or leave a partial file behind.
package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
)

const (
	// grace and leastRate bound the time of a whole transfer: grace plus its bytes at leastRate bytes a second.
	grace     = 30 * time.Second
	leastRate = 1 << 20
	// stall ends a transfer that brings nothing for so long.
	stall = 20 * time.Second
	// spare bytes of the disk stay free.
	spare = 64 << 20
)

// Send hands a file to send in pieces of at most size bytes, each in a buffer of its own, since channels borrow it
// beyond their Send. It ends with the first error of send, as it is, or of reading.
func Send(from io.Reader, size int, send func(piece []byte) error) error {
	for {
		piece := make([]byte, size)
		n, err := io.ReadFull(from, piece)
		if n > 0 {
			if err := send(piece[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// Limits of one file.
type Limits struct {
	// Total is the size in bytes that the sender announced, Most the largest that the receiver can have a use for. A file
	// of another size than Total is refused, and a Total above Most before anything is written.
	Total, Most int64
	// Digest is the expected SHA-256 of the file, hex; "" = not compared here.
	Digest string
}

// Receive writes the pieces that next returns, io.EOF after the last, to a new file in dir, whose name follows pattern
// as in os.CreateTemp, and returns its path. On an error no file is left. next is called from another goroutine, at
// most one call at a time; a call that is still blocked when Receive returns is the caller's to end, by the
// stream's context.
//
// Errors: INVALID_ARGUMENT for a Total that cannot be, RESOURCE_EXHAUSTED when the disk lacks room, DATA_LOSS when what
// arrived is not what was announced, DEADLINE_EXCEEDED when the sender is too slow, and those of next.
func Receive(ctx context.Context, dir, pattern string, limits Limits,
	next func() ([]byte, error)) (path string, err error) {
	if limits.Total < 1 || limits.Total > limits.Most {
		return "", rpcerr.InvalidArgument("total_bytes", "is %d, this file has 1 to %d bytes", limits.Total, limits.Most)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if room, err := FreeBytes(dir); err == nil && room < limits.Total+spare {
		return "", rpcerr.ResourceExhausted("%s has %d bytes free, the file has %d", dir, room, limits.Total)
	}
	f, err := os.CreateTemp(dir, pattern)
	if err != nil {
		return "", err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			os.Remove(f.Name())
			path = ""
		}
	}()
	hash := sha256.New()
	if err := pieces(ctx, io.MultiWriter(f, hash), limits.Total, next); err != nil {
		return "", err
	}
	if sum := hex.EncodeToString(hash.Sum(nil)); limits.Digest != "" && sum != limits.Digest {
		return "", rpcerr.DataLoss("the file has digest %.12s, announced was %.12s", sum, limits.Digest)
	}
	return f.Name(), nil
}

func late(format string, args ...any) error {
	return rpcerr.FromCode(codes.DeadlineExceeded, fmt.Sprintf(format, args...))
}

// pieces copies exactly total bytes in time.
func pieces(ctx context.Context, to io.Writer, total int64, next func() ([]byte, error)) error {
	allowed := grace + time.Duration(total/leastRate)*time.Second
	ctx, cancel := context.WithTimeoutCause(ctx, allowed, late("%d bytes did not arrive within %v", total, allowed))
	defer cancel()
	type piece struct {
		data []byte
		err  error
	}
	arrived := make(chan piece)
	go func() {
		for {
			data, err := next()
			select {
			case arrived <- piece{data, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	idle := time.NewTimer(stall)
	defer idle.Stop()
	got := int64(0)
	for {
		var p piece
		select {
		case p = <-arrived:
		case <-idle.C:
			return late("nothing arrived for %v, %d of %d bytes are here", stall, got, total)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		switch {
		case errors.Is(p.err, io.EOF):
			if got != total {
				return rpcerr.DataLoss("%d of the announced %d bytes arrived", got, total)
			}
			return nil
		case p.err != nil:
			return p.err
		}
		if got += int64(len(p.data)); got > total {
			return rpcerr.DataLoss("more than the announced %d bytes arrived", total)
		}
		if _, err := to.Write(p.data); err != nil {
			return err
		}
		if len(p.data) > 0 { // an empty piece is no progress
			idle.Reset(stall)
		}
	}
}
