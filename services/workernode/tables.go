package workernode

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"github.com/tandem-inference/tandem/services/gguf"
)

// TablesDigest identifies the embedding and head of a target, in hex: SHA-256 over name, type, shape and bytes of the
// tensors that a draft borrows. It is the same for the whole model file and for a file cut to these tensors, so that a
// draft with a local copy of the target needs no cut file to compare. It is remembered like the digest of a whole file.
func TablesDigest(ctx context.Context, f *gguf.File) (string, error) {
	names, err := gguf.TableTensors(f)
	if err != nil {
		return "", err
	}
	return f.PartDigest("tables", func() (string, error) { return hashTables(ctx, f, names) })
}

func hashTables(ctx context.Context, f *gguf.File, names []string) (string, error) {
	defer f.Release() // embedding and head are gigabytes
	h := sha256.New()
	for _, name := range names {
		t, _ := f.Tensor(name)
		h.Write([]byte(t.Name))
		_ = binary.Write(h, binary.LittleEndian, uint32(t.Type))
		_ = binary.Write(h, binary.LittleEndian, t.Shape)
		if err := hashBytes(ctx, h, f.Data(t)); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
