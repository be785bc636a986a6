package staged_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/engine/enginetest"
	"github.com/tandem-inference/tandem/services/engine/staged"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// opener opens targets in stages and everything else as it is.
type opener struct {
	engine.Opener
	layers []int
}

func (o opener) OpenTarget(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	var stages []staged.Stage
	for _, n := range o.layers {
		stages = append(stages, staged.Stage{Open: o.Opener.OpenTarget, Layers: n})
	}
	return staged.Open(stages)(ctx, options, p)
}

// TestStages: targets in stages keep every promise of an engine, whichever layers the stages have.
func TestStages(t *testing.T) {
	for name, c := range map[string]struct {
		layers  []int
		options enginefake.Options
	}{
		"two":                  {[]int{2, 2}, enginefake.Options{}},
		"uneven, truncatable":  {[]int{1, 3}, enginefake.Options{Truncatable: true, Vocab: 100}},
		"four, prompt bits":    {[]int{1, 1, 1, 1}, enginefake.Options{PromptRows: 64}},
		"all captured in one":  {[]int{3, 1}, enginefake.Options{CaptureLayers: []int32{0, 2}}},
		"all captured in last": {[]int{1, 3}, enginefake.Options{CaptureLayers: []int32{1, 3}}},
		"one":                  {[]int{4}, enginefake.Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.Run(t, func(*testing.T) (engine.Opener, enginetest.Models) {
				return opener{&enginefake.Opener{Options: c.options}, c.layers}, enginetest.Models{
					Target: "target", Draft: "draft", Tables: "target", Score: "score", Missing: "missing", OtherKV: 1,
				}
			})
		})
	}
}
