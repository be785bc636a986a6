package workernode

import (
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
