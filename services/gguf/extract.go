package gguf

import (
	"bytes"
	"strings"
)

// ExtractTensors writes a small GGUF with the named tensors of src, in the order of names, to dstPath (by temporary
// name and rename). It keeps all metadata but the tokenizer's arrays (megabytes that the reader of such a file does not
// need) and the split.* keys. A name that src does not have is an error and leaves no file.
//
// Two uses: the "tables" a draft worker needs of its target (token_embd.weight and, when the head is not tied,
// output.weight), and the "fuse" part a target worker needs of its draft (see TableTensors and FuseTensors).
func ExtractTensors(src *File, dstPath string, names []string) error {
	w := NewWriter()
	for _, key := range src.shards[0].keys {
		v := src.shards[0].values[key]
		if strings.HasPrefix(key, "split.") || (v.Type == TypeArray && strings.HasPrefix(key, "tokenizer.")) {
			continue
		}
		if err := w.PutValue(key, v); err != nil {
			return err
		}
	}
	for _, name := range names {
		t, ok := src.Tensor(name)
		if !ok {
			return atPath(src.shards[0].path, invalid(name, "the file has no such tensor"))
		}
		if err := w.AddTensor(t.Name, t.Type, t.Shape, bytes.NewReader(src.Data(t))); err != nil {
			return err
		}
	}
	return w.WriteFile(dstPath)
}

// TableTensors names what a draft needs of the target f: the embedding, and the head unless it is tied to
// the embedding.
func TableTensors(f *File) ([]string, error) {
	names := []string{"token_embd.weight"}
	if _, ok := f.Tensor(names[0]); !ok {
		return nil, invalid(names[0], "the file has no such tensor")
	}
	if _, ok := f.Tensor("output.weight"); ok {
		names = append(names, "output.weight")
	}
	return names, nil
}

// fuseDialects lists, per draft file dialect, the projection of the concatenated target features and the norm after it.
var fuseDialects = [][2]string{
	{"dflash_fc.weight", "dflash_hidden_norm.weight"},
	{"dflash.fc.weight", "dflash.hidden_norm.weight"},
	{"fc.weight", "enc.output_norm.weight"},
}

// FuseTensors names what a target needs of the draft f to send fused features: the projection and the norm after it, in
// whichever dialect the draft file is written.
func FuseTensors(f *File) ([]string, error) {
	for _, d := range fuseDialects {
		_, fc := f.Tensor(d[0])
		_, norm := f.Tensor(d[1])
		if fc && norm {
			return []string{d[0], d[1]}, nil
		}
	}
	return nil, invalid("dflash_fc.weight", "no feature projection with its norm in this file: not a DFlash draft")
}
