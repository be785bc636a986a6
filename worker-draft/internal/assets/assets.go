// Package assets keeps the files of a draft worker: the draft model, the target's embedding and head ("tables"), and
// the projection that targets fetch ("fuse").
package assets

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/transfer"
	"github.com/tandem-inference/tandem/services/workernode"
)

// Store is the draft's files. Safe for concurrent use.
type Store struct {
	model    *gguf.File
	cacheDir string
	// Digest of the draft model.
	Digest string
	// Model is what the file says of itself.
	Model *gguf.Model

	fuseOnce   sync.Once
	fusePath   string
	fuseDigest string
	fuseErr    error

	putMu sync.Mutex // one transfer at a time
}

// Open opens the draft model; a model that is no draft, or one that no engine runs, is an error. Files that are made or
// received go to cacheDir.
func Open(ctx context.Context, modelPath, cacheDir string) (*Store, error) {
	f, err := gguf.Open(modelPath)
	if err != nil {
		return nil, err
	}
	s := &Store{model: f, cacheDir: cacheDir}
	if s.Model, err = f.Model(); err == nil {
		if s.Model.Draft == nil {
			err = fmt.Errorf("%s: is not a draft (architecture %s)", filepath.Base(modelPath), s.Model.Arch)
		} else if err = s.Model.Draft.CheckRuns(); err != nil {
			err = fmt.Errorf("%s: %w", filepath.Base(modelPath), err)
		}
	}
	if err == nil {
		s.Digest, err = f.Digest(ctx)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

// Close unmaps the model.
func (s *Store) Close() error { return s.model.Close() }

// Tables returns the digest of the embedding and head in a local file.
func Tables(ctx context.Context, path string) (digest string, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return workernode.TablesDigest(ctx, f)
}

// Cached returns the tables with the digest if an earlier target left them here.
func (s *Store) Cached(ctx context.Context, digest string) (path string, ok bool) {
	if !wellFormed(digest) {
		return "", false
	}
	path = filepath.Join(s.cacheDir, "tables-"+digest+".gguf")
	found, err := Tables(ctx, path)
	return path, err == nil && found == digest
}

func wellFormed(digest string) bool {
	raw, err := hex.DecodeString(digest)
	return err == nil && len(raw) == sha256.Size
}

// Receive stores tables that arrive in pieces; next returns io.EOF after the last. What bounds them is said at
// transfer.Receive; DATA_LOSS also when they are not what digest announces.
func (s *Store) Receive(ctx context.Context, digest string, totalBytes int64,
	next func() ([]byte, error)) (string, error) {
	if !wellFormed(digest) {
		return "", rpcerr.InvalidArgument("digest", "is not a SHA-256 in hex")
	}
	s.putMu.Lock()
	defer s.putMu.Unlock()
	part, err := transfer.Receive(ctx, s.cacheDir, "tables-*.part",
		transfer.Limits{Total: totalBytes, Most: s.mostTables()}, next)
	if err != nil {
		return "", err
	}
	defer os.Remove(part)
	found, err := Tables(ctx, part)
	if err != nil {
		return "", rpcerr.DataLoss("the tables cannot be read: %v", err)
	}
	if found != digest {
		return "", rpcerr.DataLoss("the tables have digest %.12s, announced was %.12s", found, digest)
	}
	path := filepath.Join(s.cacheDir, "tables-"+digest+".gguf")
	return path, os.Rename(part, path)
}

const (
	// mostVocab is assumed of a draft whose file does not say how large its vocabulary is.
	mostVocab = 1 << 20
	// metadata is allowed in a file of tables, in bytes.
	metadata = 8 << 20
)

// mostTables is the largest size in bytes of tables of the draft's target: embedding and head as 32-bit floats.
func (s *Store) mostTables() int64 {
	return 2*4*int64(cmp.Or(s.Model.Vocab, mostVocab))*int64(s.Model.Hidden) + metadata
}

// Fuse returns the projection and its norm as a file of their own, cut on first use, with its digest.
func (s *Store) Fuse() (path, digest string, err error) {
	s.fuseOnce.Do(func() { s.fusePath, s.fuseDigest, s.fuseErr = s.cutFuse() })
	return s.fusePath, s.fuseDigest, s.fuseErr
}

func (s *Store) cutFuse() (path, digest string, err error) {
	names, err := gguf.FuseTensors(s.model)
	if err != nil {
		return "", "", err
	}
	if err := os.MkdirAll(s.cacheDir, 0o700); err != nil {
		return "", "", err
	}
	path = filepath.Join(s.cacheDir, "own-fuse-"+s.Digest+".gguf")
	if err := gguf.ExtractTensors(s.model, path, names); err != nil {
		return "", "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", "", err
	}
	return path, hex.EncodeToString(h.Sum(nil)), nil
}
