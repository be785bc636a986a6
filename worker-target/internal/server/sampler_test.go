package server

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/sampling"
)

// TestSamplerRanges: a worker takes the declared range of every sampler field to its engine, and nothing beyond.
func TestSamplerRanges(t *testing.T) {
	info := engine.Info{Vocab: 64, MaxContext: 100}
	for _, f := range sampling.Fields() {
		least, most := f.Range.Ends()
		if f.Interval == "any" {
			continue // what the type holds
		}
		for v, ok := range map[float64]bool{
			least: true, most: true, least - 1: false, most + 1: false, math.NaN(): f.Whole(),
		} {
			m := &tandemv1.Sampling{}
			switch {
			case f.Map():
				f.SetMap(m, map[int32]float64{5: v})
			case !f.Whole():
				f.SetFloat(m, v)
			case !math.IsNaN(v):
				f.SetInt(m, int64(v))
			}
			request, err := check(&tandemv1.DecodeRequest{PromptTokens: []int32{1}, Sampling: m, Choice: 3}, info)
			if !ok {
				if rpcerr.Reason(err) != "INVALID_ARGUMENT" || !strings.Contains(err.Error(), "sampling."+f.Name) ||
					!strings.Contains(err.Error(), f.Range.String()) {
					t.Errorf("%s %v: %v", f.Name, v, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s %v: %v", f.Name, v, err)
				continue
			}
			want := engine.SamplerOf(m)
			want.Choice = 3
			if d := cmp.Diff(want, request.Sampler); d != "" {
				t.Errorf("%s %v: %s", f.Name, v, d)
			}
		}
	}
}
