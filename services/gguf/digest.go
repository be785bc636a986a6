package gguf

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"path/filepath"
	"sync"
)

// digests remembers the digest of files by what identifies their content on disk. It is process-wide on purpose: hashing 17 GB
// takes many seconds, and gateway, worker and inspection code each open the same file for themselves. Bounded by maxDigests.
var digests = struct {
	mu sync.Mutex
	m  map[fileStat]string
}{m: make(map[fileStat]string)}

const maxDigests = 256

// Digest is the SHA-256 of the model's bytes in lower-case hex: of the file, or for a sharded model of the shards' digests
// (32 bytes each) in order. Results are remembered by path, size and modification time. Cancelling ctx stops the reading.
func (f *File) Digest(ctx context.Context) (string, error) {
	sums := make([]string, len(f.shards))
	for i, s := range f.shards {
		var st fileStat
		if i < len(f.stats) {
			st = f.stats[i]
			if abs, err := filepath.Abs(st.path); err == nil {
				st.path = abs // the process may change its directory
			}
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

func shardDigest(ctx context.Context, st fileStat, data []byte) (string, error) {
	if st.path != "" {
		digests.mu.Lock()
		sum, ok := digests.m[st]
		digests.mu.Unlock()
		if ok {
			return sum, nil
		}
	}
	h := sha256.New()
	if err := hashChunks(ctx, h, data); err != nil {
		return "", fmt.Errorf("gguf: digest: %w", err)
	}
	sum := hex.EncodeToString(h.Sum(nil))
	if st.path != "" {
		digests.mu.Lock()
		if len(digests.m) >= maxDigests {
			clear(digests.m)
		}
		digests.m[st] = sum
		digests.mu.Unlock()
	}
	return sum, nil
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
