package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/sampling"
	"google.golang.org/protobuf/testing/protocmp"
)

// TestSamplerKeepsEveryField: what a request may set arrives in Sampler, and goes from there to the engine's process
// unchanged.
func TestSamplerKeepsEveryField(t *testing.T) {
	seen := 0
	for i, f := range sampling.Fields() {
		m := &tandemv1.Sampling{}
		_, most := f.Range.Ends()
		v := min(most, float64(i+1)) * 0.75
		switch {
		case f.Map():
			f.SetMap(m, map[int32]float64{7: v, 3: -v})
		case f.Whole():
			f.SetInt(m, int64(i+1))
		default:
			f.SetFloat(m, v)
		}
		want := sampling.ForEngine(m)
		if d := cmp.Diff(want, SamplerToProto(SamplerOf(m)), protocmp.Transform()); d != "" {
			t.Errorf("%s: %s", f.Name, d)
		}
		if cmp.Equal(want, sampling.ForEngine(nil), protocmp.Transform()) {
			t.Errorf("%s changes nothing", f.Name)
		}
		seen++
	}
	if seen < 10 {
		t.Errorf("%d fields", seen)
	}
	if d := cmp.Diff(DefaultSampler(), SamplerFromProto(nil)); d != "" {
		t.Error(d)
	}
}
