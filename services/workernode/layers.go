package workernode

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/services/gguf"
)

// LayersDigest identifies what a stage with the layers [first, last) of n uses of a model file, in hex: SHA-256 over
// the model's parameters, and name, type, shape and bytes of the tensors: those of the layers, with the embedding where
// the first of all layers is among them, and all that is no layer's where the last is. It is the same for the whole
// file and for one that lacks other layers, and is remembered like the digest of a whole file.
func LayersDigest(ctx context.Context, f *gguf.File, first, last, n int) (string, error) {
	return f.PartDigest(fmt.Sprintf("layers %d-%d", first, last), func() (string, error) {
		return hashLayers(ctx, f, first, last, n)
	})
}

func hashLayers(ctx context.Context, f *gguf.File, first, last, n int) (string, error) {
	defer f.Release() // gigabytes
	arch, err := f.Architecture()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, key := range sorted(f.Keys()) {
		if !strings.HasPrefix(key, arch+".") {
			continue
		}
		v, _ := f.Lookup(key)
		fmt.Fprintf(h, "%q %d %d %d ", key, v.Type, v.Elem, v.Count)
		if err := hashBytes(ctx, h, v.Raw()); err != nil {
			return "", err
		}
	}
	var names []string
	for _, t := range f.Tensors() {
		layer, ok := layerOf(t.Name)
		switch {
		case ok && layer >= first && layer < last,
			!ok && last == n,
			!ok && first == 0 && t.Name == "token_embd.weight":
			names = append(names, t.Name)
		}
	}
	for _, name := range sorted(names) {
		t, _ := f.Tensor(name)
		fmt.Fprintf(h, "%q ", t.Name)
		_ = binary.Write(h, binary.LittleEndian, uint32(t.Type)) // hashes never fail
		_ = binary.Write(h, binary.LittleEndian, t.Shape)
		if err := hashBytes(ctx, h, f.Data(t)); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// layerOf is the layer of a tensor of one: blk.N.…
func layerOf(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, "blk.")
	if !ok {
		return 0, false
	}
	number, _, _ := strings.Cut(rest, ".")
	layer, err := strconv.Atoi(number)
	return layer, err == nil
}

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

// hashBytes adds data, in pieces, so that a cancel is noticed.
func hashBytes(ctx context.Context, to io.Writer, data []byte) error {
	for len(data) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(len(data), 8<<20)
		if _, err := to.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}
