package sequence

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/services/engine"
)

// fake notes the groups of its steps and returns a prepared result.
type fake struct {
	engine.Target
	groups []engine.Group
	result engine.StepResult
}

func (e *fake) Step(_ context.Context, s *engine.Step, r *engine.StepResult) error {
	g := s.Groups[0]
	g.Path = slices.Clone(g.Path)
	e.groups = append(e.groups, g)
	*r = e.result
	return nil
}

// TestPendingCommit: a path is committed by the next step, once, unless the step committed its rows itself; a request
// inherits none.
func TestPendingCommit(t *testing.T) {
	e := &fake{}
	var s Sequence
	for range 2 {
		e.groups = nil
		s.Start(e, 4, 0, 10)
		for _, c := range []struct {
			rows, kept int
			commit     bool
			path       []int32 // accepted afterwards
		}{
			{rows: 3, commit: true}, {rows: 4, path: []int32{0, 2}}, {rows: 1, kept: 2, commit: true, path: []int32{0}},
			{rows: 2, path: []int32{0, 1}},
		} {
			s.Begin(engine.KindDecode, engine.FeatureNone, c.kept)
			for range c.rows {
				s.Add(engine.Row{Mask: -1})
			}
			if err := s.Run(t.Context(), c.commit); err != nil {
				t.Fatal(err)
			}
			s.SetPath(append(s.Path()[:0], c.path...))
			s.Advance(max(len(c.path), 1))
		}
		want := []engine.Group{
			{Rows: 3, Commit: true}, {Rows: 4}, {Rows: 1, Commit: true, Path: []int32{0, 2},
				Kept: engine.KeptRange{Position: 1, Rows: 2}}, {Rows: 2},
		}
		if !slices.EqualFunc(e.groups, want, func(a, b engine.Group) bool {
			return a.Sequence == 4 && a.Rows == b.Rows && a.Commit == b.Commit && slices.Equal(a.Path, b.Path) &&
				a.Kept == b.Kept
		}) {
			t.Errorf("groups %+v", e.groups)
		}
	}
}

// TestResultIsChecked: what would be a crash or a wrong token is an error that says what the engine did.
func TestResultIsChecked(t *testing.T) {
	good := func() engine.StepResult {
		return engine.StepResult{
			Tokens: []int32{1, 9}, Logprobs: []float32{-1, -2}, Scores: []float32{-3, -4}, TopStride: 1, TopIDs: []int32{5, -1},
			TopLogprobs: []float32{-1, -1},
		}
	}
	for name, c := range map[string]struct {
		change func(r *engine.StepResult)
		want   string
	}{
		"good":             {func(*engine.StepResult) {}, ""},
		"too few tokens":   {func(r *engine.StepResult) { r.Tokens = r.Tokens[:1] }, "1 tokens for 2 rows"},
		"too few logprobs": {func(r *engine.StepResult) { r.Logprobs = r.Logprobs[:1] }, "for 2 rows"},
		"no such token":    {func(r *engine.StepResult) { r.Tokens[1] = 10 }, "token 10 of a vocabulary of 10"},
		"below 0":          {func(r *engine.StepResult) { r.Tokens[0] = -1 }, "token -1"},
		"too few scores":   {func(r *engine.StepResult) { r.Scores = r.Scores[:1] }, "1 scores for 2 rows"},
		"too few tops":     {func(r *engine.StepResult) { r.TopIDs = r.TopIDs[:1] }, "1 candidates for 2 rows"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &fake{result: good()}
			c.change(&e.result)
			var s Sequence
			s.Start(e, 1, 0, 10)
			s.Begin(engine.KindDecode, engine.FeatureNone, 0)
			for range 2 {
				s.Add(engine.Row{Want: engine.WantToken | engine.WantScore | engine.WantTop, TopK: 1, Mask: -1})
			}
			err := s.Run(t.Context(), false)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r := s.Result()
			if p := r.Chosen(0); p.Logprob != -1 || len(p.Top) != 1 || p.Top[0].Token != 5 {
				t.Errorf("%v", p)
			}
			r.Replace(0, 7)
			if p := r.Chosen(0); r.Tokens()[0] != 7 || p.Logprob != -3 {
				t.Errorf("a replaced token has %v", p)
			}
			if p := r.Scored(1); p.Logprob != -4 || len(p.Top) != 0 {
				t.Errorf("%v", p)
			}
			if token, ok := r.Last(); token != 9 || !ok {
				t.Errorf("last %d, %v", token, ok)
			}
		})
	}
}

// TestOtherRequests: a result says how many rows of how many other requests ran with a round, prompts apart.
func TestOtherRequests(t *testing.T) {
	for _, c := range []struct {
		rounds, batch, prompt         int
		otherRequests, others, beside int
	}{
		{},                    // an engine that says nothing of others
		{rounds: 1, batch: 2}, // alone
		{rounds: 3, batch: 9, otherRequests: 2, others: 7}, // among others
		{rounds: 1, batch: 66, prompt: 64, beside: 64},     // with a piece of a prompt
		{rounds: 2, batch: 67, prompt: 64, otherRequests: 1, others: 1, beside: 64},
	} {
		e := &fake{result: engine.StepResult{BatchRounds: c.rounds, BatchRows: c.batch, PromptRows: c.prompt}}
		var s Sequence
		s.Start(e, 4, 0, 10)
		s.Begin(engine.KindDecode, engine.FeatureNone, 0)
		s.Add(engine.Row{Mask: -1})
		s.Add(engine.Row{Mask: -1})
		if err := s.Run(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if r := s.Result(); r.OtherRequests() != c.otherRequests || r.Others() != c.others || r.Beside() != c.beside {
			t.Errorf("%+v: %d others with %d rows, %d of prompts", c, r.OtherRequests(), r.Others(), r.Beside())
		}
	}
}
