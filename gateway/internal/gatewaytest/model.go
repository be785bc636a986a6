// Package gatewaytest holds what the gateway's tests share: the demonstration model's tokenizer and scripted workers.
package gatewaytest

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// ModelPath finds a file of models/ from any package below the root.
func ModelPath(tb testing.TB, name string) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for range 6 {
		path := filepath.Join(dir, "models", name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
		dir = filepath.Dir(dir)
	}
	tb.Fatalf("models/%s was not found above the working directory", name)
	return ""
}

// Target is the demonstration target's file name, Scorer the prefill drafter's.
const (
	Target = "tandem-tiny-target-q4_k_m.gguf"
	Scorer = "tandem-tiny-prefill-q8_0.gguf"
)

var load = sync.OnceValues(func() (*tokenizer.Tokenizer, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return tokenizer.FromGGUF(f)
})

var path string

// Tokenizer is the demonstration target's.
func Tokenizer(tb testing.TB) *tokenizer.Tokenizer {
	tb.Helper()
	path = ModelPath(tb, Target)
	tok, err := load()
	if err != nil {
		tb.Fatal(err)
	}
	return tok
}
