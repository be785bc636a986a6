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
// the model's parameters, and name, type, shape and bytes of LayerTensors. It is the same for the whole file and for
// one that lacks other tensors, and is remembered like the digest of a whole file.
func LayersDigest(ctx context.Context, f *gguf.File, first, last, n int) (string, error) {
	return f.PartDigest(fmt.Sprintf("stage %d-%d", first, last), func() (string, error) {
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
	for _, name := range sorted(LayerTensors(f, first, last, n)) {
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

// LayerTensors names the tensors of a model file that a stage with the layers [first, last) of n uses, in the order of
// the file: those of the layers, the embedding where the first of all layers is among them, and all that is no layer's
// where the last is, with the embedding only if it is the head as well.
func LayerTensors(f *gguf.File, first, last, n int) (names []string) {
	_, headed := f.Tensor("output.weight")
	for _, t := range f.Tensors() {
		layer, ok := layerOf(t.Name)
		used := last == n
		switch {
		case ok:
			used = layer >= first && layer < last
		case t.Name == "token_embd.weight":
			used = first == 0 || last == n && !headed
		}
		if used {
			names = append(names, t.Name)
		}
	}
	return names
}

// LacksLayers says what a model file lacks of LayerTensors.
func LacksLayers(f *gguf.File, first, last, n int) error {
	if first < 0 || first >= last || last > n {
		return fmt.Errorf("layers %d to %d are none of the model's %d", first, last-1, n)
	}
	there := map[int]bool{}
	for _, t := range f.Tensors() {
		if layer, ok := layerOf(t.Name); ok {
			there[layer] = true
		}
	}
	for layer := first; layer < last; layer++ {
		if !there[layer] {
			return fmt.Errorf("layer %d is not in the file", layer)
		}
	}
	need := map[string]bool{"output_norm.weight": last == n, "token_embd.weight": first == 0}
	if _, headed := f.Tensor("output.weight"); last == n && !headed {
		need["token_embd.weight"] = true // it is the head
	}
	for name, needed := range need {
		if _, ok := f.Tensor(name); needed && !ok {
			return fmt.Errorf("%s is not in the file", name)
		}
	}
	return nil
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
