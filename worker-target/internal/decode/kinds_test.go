package decode

import (
	"context"
	"slices"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/worker-target/internal/auto"
	"github.com/tandem-inference/tandem/worker-target/internal/piece"
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

// TestKindsAreStated: prompt pieces of many tokens have the prompt contract in all their steps, short ones, replayed
// tokens and rounds that of decoding. What known tokens and plain rounds run is committed at once; a round of several
// rows leaves its path to the next.
func TestKindsAreStated(t *testing.T) {
	type group = engine.Group
	prompt := func(rows int) group {
		return group{Sequence: 1, Rows: rows, Kind: engine.KindPrompt, Commit: true}
	}
	commit := func(rows int) group { return group{Sequence: 1, Rows: rows, Commit: true} }
	tree := func(path ...int32) group { return group{Sequence: 1, Rows: 7, Path: path} }
	all := []int32{0, 1, 2, 3, 4, 5, 6}
	for name, c := range map[string]struct {
		prompt, committed, most, promptRows, chunk int
		messages                                   []int // lengths of the prompt's first messages
		mode                                       tandemv1.SpeculationMode
		want                                       []group
	}{
		"long": {prompt: 128 + 65, most: 1, want: []group{prompt(128), prompt(65)}},
		"rest": {prompt: 128 + 64, most: 1, want: []group{prompt(128), prompt(64)}},
		"short piece": {prompt: 512 + 64, most: 1, want: []group{prompt(128), prompt(128), prompt(128), prompt(128),
			commit(64)}},
		"short steps": {prompt: 193, most: 1, chunk: 100, want: []group{prompt(64), prompt(64), prompt(64), prompt(1)}},
		"messages": {prompt: 300, messages: []int{70, 10, 64}, most: 1,
			want: []group{prompt(70), prompt(74), prompt(128), prompt(28)}},
		"short message": {prompt: 164, messages: []int{64}, most: 1, want: []group{commit(64), prompt(100)}},
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
			const end, header = vocab - 1, vocab - 2
			r := &Request{Prompt: make([]int32, c.prompt), Sampler: engine.DefaultSampler(), Max: c.most, Mode: c.mode,
				TopLogprobs: -1}
			at := 0
			for _, n := range c.messages {
				r.Prompt[at+n-1], r.Prompt[at+n] = end, header
				at += n
			}
			for i := range c.committed {
				r.Committed = append(r.Committed, int32(i%vocab))
			}
			var drafter Drafts
			if c.mode == tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN {
				drafter = &knowing{}
			}
			markers := piece.Markers{Ends: []int32{end}, Headers: []int32{header}}
			slot := NewSlot(Config{NoLookup: true, PrefillChunk: c.chunk, Markers: markers}, auto.New(), drafter)
			for range 2 { // the slot's memory of an earlier request does not count
				e.groups = nil
				var out discard
				var stats Stats
				if _, err := slot.Run(t.Context(), e, r, &out, &stats); err != nil {
					t.Fatal(err)
				}
				if !slices.EqualFunc(e.groups, c.want, func(a, b group) bool {
					return a.Sequence == b.Sequence && a.Rows == b.Rows && a.Kind == b.Kind && a.Commit == b.Commit &&
						slices.Equal(a.Path, b.Path)
				}) {
					t.Errorf("ran %+v, want %+v", e.groups, c.want)
				}
			}
		})
	}
}
