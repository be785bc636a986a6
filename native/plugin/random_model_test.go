package main

import (
	"path/filepath"
	"testing"

	"github.com/tandem-inference/tandem/services/gguf/gguftest"
)

func randomModel(t testing.TB, name string) string {
	t.Helper()
	return gguftest.Random(t, filepath.Join("..", "tests", "data", "random_models.txt"), name)
}

// TestRandomModels: the files are those that the native tests and the goldens' script make.
func TestRandomModels(t *testing.T) {
	for _, name := range []string{"ratio3", "onelayer"} {
		randomModel(t, name)
	}
}
