package gguf

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// digests remembers the digest of files by what identifies their content on disk. It is process-wide on purpose:
// hashing 17 GB takes many seconds, and gateway, worker and inspection code each open the same file for themselves.
// Bounded by maxDigests.
var digests = struct {
	mu     sync.Mutex
	m      map[fileStat]string
	record *record // nil = nothing is kept on disk
}{m: make(map[fileStat]string)}

const maxDigests = 256

// Digest is the SHA-256 of the model's bytes in lower-case hex: of the file, or for a sharded model of the shards'
// digests (32 bytes each) in order, which for a safetensors draft are model.safetensors and config.json. Results are
// remembered by path, size, modification time and inode, in the process and, after RememberDigests, on disk. The files
// are read, not mapped: their pages do not count as the process's memory. Cancelling ctx stops the reading.
func (f *File) Digest(ctx context.Context) (string, error) {
	sums := make([]string, len(f.shards))
	for i, s := range f.shards {
		var st fileStat
		if i < len(f.stats) {
			st = f.stats[i]
			st.path = absolute(st.path)
		}
		sum, err := shardDigest(ctx, st, s.data)
		if err != nil {
			return "", err
		}
		sums[i] = sum
	}
	if len(sums) == 1 {
		return sums[0], nil
	}
	h := sha256.New()
	for _, s := range sums {
		raw, _ := hex.DecodeString(s)
		h.Write(raw)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// PartDigest returns the SHA-256, in lower-case hex, that compute gives of a part of the file, and remembers it as
// Digest does: by part, path, size, modification time and inode. A model of several files is hashed every time.
func (f *File) PartDigest(part string, compute func() (string, error)) (string, error) {
	if len(f.shards) != 1 || len(f.stats) != 1 || f.stats[0].path == "" {
		return compute()
	}
	st := f.stats[0]
	st.path = absolute(st.path)
	whole := st
	st.part = part
	return remembered(st, func() (sum string, settled bool, err error) {
		if sum, err = compute(); err != nil {
			return "", false, err
		}
		info, err := os.Stat(st.path)
		return sum, err == nil && statOf(st.path, info) == whole && old(st), nil
	})
}

// absolute returns path for use after the process has changed its directory.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

// remembered returns the digest that is known for st, or else what hash returns. settled says whether the file is the
// one of st still, and no longer being written: then the digest is kept on disk, too.
func remembered(st fileStat, hash func() (sum string, settled bool, err error)) (string, error) {
	digests.mu.Lock()
	sum, ok := digests.m[st]
	rec := digests.record
	digests.mu.Unlock()
	if ok {
		return sum, nil
	}
	if sum, ok = rec.read(st); !ok {
		var settled bool
		var err error
		if sum, settled, err = hash(); err != nil {
			return "", err
		}
		if settled {
			rec.write(st, sum)
		}
	}
	digests.mu.Lock()
	defer digests.mu.Unlock()
	if len(digests.m) >= maxDigests {
		clear(digests.m)
	}
	digests.m[st] = sum
	return sum, nil
}

func shardDigest(ctx context.Context, st fileStat, data []byte) (string, error) {
	if st.path == "" {
		h := sha256.New()
		if err := hashChunks(ctx, h, data); err != nil {
			return "", fmt.Errorf("gguf: digest: %w", err)
		}
		return hex.EncodeToString(h.Sum(nil)), nil
	}
	return remembered(st, func() (sum string, settled bool, err error) {
		if sum, settled, err = hashFile(ctx, st, data); err != nil {
			err = fmt.Errorf("gguf: digest of %s: %w", st.path, err)
		}
		return sum, settled, err
	})
}

// settleTime is how old a file's last change must be for its digest to be kept on disk: a change within the same tick
// of the file system's clock would not show.
const settleTime = 100 * time.Millisecond

// old reports whether a file's last change shows in its time.
func old(st fileStat) bool { return time.Since(time.Unix(0, st.mtimeNs)) >= settleTime }

// hashFile hashes the file that st describes. Where the path leads to another file by now, the mapping of the one that
// was opened is read instead. settled reports whether the file is the one of st still, and no longer being written.
func hashFile(ctx context.Context, st fileStat, data []byte) (sum string, settled bool, err error) {
	h := sha256.New()
	same := func(info os.FileInfo, err error) bool { return err == nil && statOf(st.path, info) == st }
	file, err := os.Open(st.path)
	if err == nil {
		defer file.Close()
	}
	if err != nil || !same(file.Stat()) {
		err = hashChunks(ctx, h, data)
		release(data)
		return hex.EncodeToString(h.Sum(nil)), false, err
	}
	buffer := make([]byte, 1<<20)
	for {
		if err := ctx.Err(); err != nil {
			return "", false, err
		}
		n, err := file.Read(buffer)
		h.Write(buffer[:n])
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", false, err
		}
	}
	settled = same(file.Stat()) && old(st)
	return hex.EncodeToString(h.Sum(nil)), settled, nil
}

// hashChunks hashes in pieces small enough that a cancel is noticed within milliseconds.
func hashChunks(ctx context.Context, h hash.Hash, data []byte) error {
	const chunk = 8 << 20
	for len(data) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(chunk, len(data))
		h.Write(data[:n])
		data = data[n:]
	}
	return nil
}
