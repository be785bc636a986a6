package tokenizer

import (
	"fmt"
	"strings"

	"github.com/tandem-inference/tandem/services/gguf"
)

// FromGGUF reads the vocabulary of a model file. Everything is copied: the file may be closed afterwards. Unsupported
// or inconsistent vocabularies are errors that name the metadata key.
func FromGGUF(f *gguf.File) (*Tokenizer, error) {
	model, err := needString(f, "tokenizer.ggml.model")
	if err != nil {
		return nil, err
	}
	if model != "gpt2" {
		return nil, fmt.Errorf("tokenizer: tokenizer.ggml.model %q is not supported (want gpt2, byte-level BPE)", model)
	}
	pre, err := needString(f, "tokenizer.ggml.pre")
	if err != nil {
		return nil, err
	}
	tokens, ok, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil || !ok {
		return nil, missing("tokenizer.ggml.tokens", err)
	}
	types, ok, err := f.Int32s("tokenizer.ggml.token_type")
	if err != nil || !ok {
		return nil, missing("tokenizer.ggml.token_type", err)
	}
	if len(types) != len(tokens) {
		return nil, fmt.Errorf("tokenizer: tokenizer.ggml.token_type has %d entries for %d tokens", len(types), len(tokens))
	}
	kinds := make([]Kind, len(types))
	for i, n := range types {
		kinds[i] = Kind(n)
	}
	lines, ok, err := f.Strings("tokenizer.ggml.merges")
	if err != nil || !ok {
		return nil, missing("tokenizer.ggml.merges", err)
	}
	eos := int32(-1)
	if id, ok, err := f.Uint("tokenizer.ggml.eos_token_id"); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	} else if ok {
		if id >= uint64(len(tokens)) {
			return nil, fmt.Errorf("tokenizer: tokenizer.ggml.eos_token_id %d is outside the vocabulary of %d", id, len(tokens))
		}
		eos = int32(id)
	}
	return build(pre, tokens, kinds, len(lines), func(i int) (string, string, error) { return cutMerge(i, lines[i]) }, eos)
}

// cutMerge splits "left right" at its only space.
func cutMerge(i int, line string) (left, right string, err error) {
	left, right, ok := strings.Cut(line, " ")
	if !ok || left == "" || right == "" || strings.Contains(right, " ") {
		return "", "", fmt.Errorf("tokenizer: merge %d (%q) is not two symbols with one space between", i, line)
	}
	return left, right, nil
}

func needString(f *gguf.File, key string) (string, error) {
	s, ok, err := f.String(key)
	if err != nil || !ok {
		return "", missing(key, err)
	}
	return s, nil
}

func missing(key string, err error) error {
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	return fmt.Errorf("tokenizer: %s is missing from the model file", key)
}
