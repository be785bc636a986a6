package native

import (
	"maps"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// TestFeatureEncodings: the C header has exactly the encodings of the contract, with their numbers.
func TestFeatureEncodings(t *testing.T) {
	header, err := os.ReadFile("../../../include/tandem/engine.h")
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]int32)
	for _, m := range regexp.MustCompile(`(?m)^#define TND_FEATURE_(\w+) (\d+)u?\b`).FindAllStringSubmatch(string(header),
		-1) {
		n, err := strconv.ParseInt(m[2], 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		got["FEATURE_ENCODING_"+m[1]] = int32(n)
	}
	want := maps.Clone(tandemv1.FeatureEncoding_value)
	delete(want, "FEATURE_ENCODING_UNSPECIFIED") // 0, no features, has no name in C
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("engine.h differs from proto/tandem/v1/common.proto (-proto +C):\n%s", diff)
	}
}
