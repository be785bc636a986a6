package auto

import (
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/ddtree"
)

// near reports whether d is within a tenth of want.
func near(d, want time.Duration) bool { return d > want*9/10 && d < want*11/10 }

// TestPromptPrior: what rows of prompts cost is taken from steps of rounds, then from the calibration, until pieces are
// measured.
func TestPromptPrior(t *testing.T) {
	m := New()
	if d := m.Prompt(512, 0, true); d != 0 {
		t.Errorf("%v without any step", d)
	}
	m.SetVerify(32, 32*time.Millisecond)
	if d := m.Prompt(128, 0, false); !near(d, 128*time.Millisecond) {
		t.Errorf("%v, steps of rounds take 1 ms a row", d)
	}
	m.SetPrompt(64, 20*time.Millisecond)
	m.SetPrompt(256, 60*time.Millisecond)
	for _, withRounds := range []bool{false, true} {
		if d := m.Prompt(512, 0, withRounds); !near(d, 120*time.Millisecond) {
			t.Errorf("512 rows, with rounds %v: %v, calibrated are 60 ms for 256", withRounds, d)
		}
	}
}

// TestPromptCosts: rows alone and rows beside rounds have times of their own, which follow the measurements.
func TestPromptCosts(t *testing.T) {
	m := New()
	m.SetVerify(32, 32*time.Millisecond)
	for range 40 {
		for _, rows := range []int{64, 128, 256, 448} {
			m.ObservePrompt(rows, 3000, false, time.Duration(rows)*100*time.Microsecond)
			m.ObservePrompt(rows, 3000, true, time.Duration(rows)*150*time.Microsecond)
		}
	}
	for _, rows := range []int{64, 192, 448} {
		if d := m.Prompt(rows, 3000, false); !near(d, time.Duration(rows)*100*time.Microsecond) {
			t.Errorf("%d rows alone: %v", rows, d)
		}
		if d := m.Prompt(rows, 3000, true); !near(d, time.Duration(rows)*150*time.Microsecond) {
			t.Errorf("%d rows with rounds: %v", rows, d)
		}
	}
	if d := m.Verify(32, 3000); d != 32*time.Millisecond {
		t.Errorf("a round of 32 rows takes %v now", d)
	}
	r := m.Report()
	if !near(time.Duration(r.Prompt[256]*1e6), 25600*time.Microsecond) || r.Beside[128] <= r.Prompt[128] {
		t.Errorf("reported %v and %v", r.Prompt, r.Beside)
	}
	if s := r.Message(); len(s.Prompts) != 4 || len(s.PromptsBeside) != 4 ||
		s.Prompts[2].Rows != 256 || s.Prompts[2].Ms != r.Prompt[256] {
		t.Errorf("sent %v and %v", s.Prompts, s.PromptsBeside)
	}
	// Steps that take less than their rounds were expected to make rows of prompts cheap, but not free.
	for range 100 {
		m.ObservePrompt(64, 3000, true, -time.Second)
	}
	if d, alone := m.Prompt(64, 3000, true), m.Prompt(64, 3000, false); d < alone/20 || d > alone/5 {
		t.Errorf("%v for 64 rows, alone %v", d, alone)
	}
}

// TestRoundBesidePrompt: the time of a step with rows of prompts teaches nothing about rounds, neither their costs nor
// what drafts gain, but the round's tokens do.
func TestRoundBesidePrompt(t *testing.T) {
	m := New()
	for _, rows := range []int{1, 2, 4, 8, 16} {
		m.SetVerify(rows, time.Duration(rows+9)*time.Millisecond)
	}
	widths := []int{1, 4, 8}
	before := map[int]time.Duration{}
	for _, rows := range widths {
		before[rows] = m.Verify(rows, 100)
	}
	slow := 400 * time.Millisecond
	m.ObservePlain(&Round{Length: 100, Rows: 1, Others: 3, OtherRequests: 3, Beside: 448, Verify: slow, Wall: slow})
	p := m.NewRequest(8, 16, []int32{1, 2, 3, 4, 5, 6})
	tree := &ddtree.Tree{}
	tree.Reset(1)
	path := []int32{0}
	for i := int32(1); i < 8; i++ {
		tree.Add(i, i-1, -0.1)
		path = append(path, i)
	}
	for range 20 {
		p.Next(100, 100, 0)
		p.Observe(&Round{
			Plan: Plan{Kind: Chain, Block: 8, Budget: 7}, Length: 100, Rows: 8, Others: 3, Beside: 448, Verify: slow, Wall: slow,
			Draft: 2 * time.Millisecond, Tree: tree, Path: path,
		})
	}
	for _, rows := range widths {
		if after := m.Verify(rows, 100); after != before[rows] {
			t.Errorf("%d rows took %v, take %v after steps beside prompts", rows, before[rows], after)
		}
		if !m.costs.doubtful(rows, 100) {
			t.Errorf("the time of %d rows counts as measured", rows)
		}
	}
	if m.Hop() != 0 {
		t.Errorf("a hop of %v", m.Hop())
	}
	if g := m.calibration[well]; g.predicted == 0 || g.predicted > 2*g.accepted {
		t.Errorf("rounds were predicted to bring %.0f tokens and brought %.0f", g.predicted, g.accepted)
	}
	if r := m.Report(); r.First < 0.7 {
		t.Errorf("the first token of proposals is right in %.2f", r.First)
	}
}
