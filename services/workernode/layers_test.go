package workernode

import (
	"path/filepath"
	"testing"

	"github.com/tandem-inference/tandem/services/gguf"
)

// TestLayersDigest: ranges of layers have digests of their own, and a file has the same ones every time.
func TestLayersDigest(t *testing.T) {
	f, err := gguf.Open("../../models/tandem-tiny-target-q4_k_m.gguf")
	if err != nil {
		t.Skip("needs the demonstration models: ", err)
	}
	defer f.Close()
	seen := map[string][2]int{}
	for _, r := range [][2]int{{0, 8}, {0, 5}, {5, 8}, {0, 4}, {4, 8}, {4, 5}} {
		sum, err := hashLayers(t.Context(), f, r[0], r[1], 8)
		again, _ := LayersDigest(t.Context(), f, r[0], r[1], 8)
		if err != nil || again != sum || len(sum) != 64 {
			t.Errorf("%v: %s, then %s, %v", r, sum, again, err)
		}
		if other, ok := seen[sum]; ok {
			t.Errorf("%v has the digest of %v", r, other)
		}
		seen[sum] = r
	}
}

// TestLacksLayers: a file with the tensors of a stage has what that stage needs, and lacks what others need.
func TestLacksLayers(t *testing.T) {
	f, err := gguf.Open("../../models/tandem-tiny-target-q4_k_m.gguf")
	if err != nil {
		t.Skip("needs the demonstration models: ", err)
	}
	defer f.Close()
	ranges := [][2]int{{0, 3}, {3, 5}, {5, 8}}
	for _, r := range ranges {
		path := filepath.Join(t.TempDir(), "stage.gguf")
		if err := gguf.ExtractTensors(f, path, LayerTensors(f, r[0], r[1], 8)); err != nil {
			t.Fatal(err)
		}
		part, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range ranges {
			if err := LacksLayers(part, other[0], other[1], 8); (err == nil) != (r == other) {
				t.Errorf("the file of layers %v for %v: %v", r, other, err)
			}
		}
		_ = part.Close()
	}
	for _, r := range [][2]int{{0, 9}, {-1, 2}, {3, 3}} {
		if LacksLayers(f, r[0], r[1], 8) == nil {
			t.Errorf("%v are layers of a model with 8", r)
		}
	}
}
