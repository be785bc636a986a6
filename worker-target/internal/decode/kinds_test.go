package decode

import (
	"context"
	"slices"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
)

// recorder is an engine that notes the groups of its steps.
type recorder struct {
	counting
	promptRows int
	groups     []engine.Group
}

func (r *recorder) Info() engine.Info {
	i := r.counting.Info()
	i.MaxBatchRows, i.PromptRows = 128, r.promptRows
	return i
}

func (r *recorder) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	for _, g := range step.Groups {
		g.Path = slices.Clone(g.Path)
		r.groups = append(r.groups, g)
	}
	return r.counting.Step(ctx, step, result)
}

// TestKindsAreStated: prompt pieces of many rows have the prompt contract, short ones, replayed tokens and rounds that
// of decoding. What known tokens and plain rounds run is committed at once; a round of several rows leaves its path to
// the next.
func TestKindsAreStated(t *testing.T) {
	type group = engine.Group
	prompt := func(rows int) group {
		return group{Sequence: 1, Rows: rows, Kind: engine.KindPrompt, Commit: true}
	}
	commit := func(rows int) group { return group{Sequence: 1, Rows: rows, Commit: true} }
	tree := func(path ...int32) group { return group{Sequence: 1, Rows: 7, Path: path} }
	all := []int32{0, 1, 2, 3, 4, 5, 6}
	for name, c := range map[string]struct {
		prompt, committed, most, promptRows int
		mode                                tandemv1.SpeculationMode
		want                                []group
	}{
		"long":          {prompt: 128 + 65, most: 1, want: []group{prompt(128), prompt(65)}},
		"short rest":    {prompt: 128 + 64, most: 1, want: []group{prompt(128), commit(64)}},
		"short":         {prompt: 5, most: 1, want: []group{commit(5)}},
		"engine's word": {prompt: 128 + 64, most: 1, promptRows: 32, want: []group{prompt(128), prompt(64)}},
		"replay":        {prompt: 5, committed: 70, most: 72, want: []group{commit(5), commit(64), commit(6), commit(1)}},
		"plain":         {prompt: 5, most: 3, want: []group{commit(5), commit(1), commit(1)}},
		"chain": {prompt: 5, most: 22, mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN,
			want: []group{commit(5), tree(), tree(all...), tree(all...)}},
		"replay, then chain": {prompt: 5, committed: 3, most: 11, mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN,
			want: []group{commit(5), commit(3), tree()}},
	} {
		t.Run(name, func(t *testing.T) {
			e := &recorder{promptRows: c.promptRows}
			r := &Request{Prompt: make([]int32, c.prompt), Sampler: engine.DefaultSampler(), Max: c.most, Mode: c.mode, TopLogprobs: -1}
			for i := range c.committed {
				r.Committed = append(r.Committed, int32(i%vocab))
			}
			var drafter Drafts
			if c.mode == tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN {
				drafter = &knowing{}
			}
			slot := NewSlot(Config{NoLookup: true}, auto.New(), drafter)
			for range 2 { // the slot's memory of an earlier request does not count
				e.groups = nil
				var out discard
				var stats Stats
				if _, err := slot.Run(t.Context(), e, r, &out, &stats); err != nil {
					t.Fatal(err)
				}
				if !slices.EqualFunc(e.groups, c.want, func(a, b group) bool {
					return a.Sequence == b.Sequence && a.Rows == b.Rows && a.Kind == b.Kind && a.Commit == b.Commit && slices.Equal(a.Path, b.Path)
				}) {
					t.Errorf("ran %+v, want %+v", e.groups, c.want)
				}
			}
		})
	}
}
