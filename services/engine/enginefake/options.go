// Package enginefake is an engine in pure Go for tests. It keeps every promise of engine.Engine, but its "model" is a
// hash of the tokens so far over a small vocabulary.
//
//   - Target: the next token's logits depend on the history alone, with clear peaks, so greedy output is a fixed function
//     of the prompt, rows are batch invariant by construction, and every wrong position, parent or path is visible.
//   - Draft: feature rows carry the hash of the history. A draft that was fed the right features predicts the target's
//     own greedy continuation, and is right at each position with probability Options.Accept; one that was fed wrong
//     features is wrong nearly always. A feature row that no target made decodes to noise.
//   - Score: overlap with the query rows' n-grams, so that a repeated fact scores high.
//
// Delays, failures and crashes are set in Options or triggered on the Engine.
package enginefake

import (
	"time"
)

// Options of a fake engine. The zero value is a well-behaved small model.
type Options struct {
	Vocab     int // 0 = 64
	Hidden    int // 0 = 16; at least 8
	Layers    int // 0 = 4
	Context   int // the model's context_length, 0 = 4096
	BlockSize int // drafts, 0 = 8
	MaskToken int32
	// CaptureLayers of the draft: what LoadFuse captures and what a draft reports. nil = {1, 3}.
	CaptureLayers []int32
	// Truncatable makes sequences truncatable; by default the model is recurrent.
	Truncatable bool
	Arch, Name  string // "fake", "fake-<role>"
	Backend     string // "fake"

	// Accept is the probability that a draft's first candidate of a position is what the target's argmax would be, given
	// that the positions before were. 0 means 0.7; use NeverAccept for 0.
	Accept float64
	// NeverAccept keeps the target's token out of all candidates.
	NeverAccept bool
	// EOS is the token that ends a text, EOSChance the probability per position that it is the likeliest. 0 = never.
	EOS       int32
	EOSChance float64
	// Next forces the likeliest next token after a history (prompt, output and tree path); ok false leaves it to the hash.
	// It must be a pure function.
	Next func(history []int32) (token int32, ok bool)
	// Histories, shared between target and draft, lets a draft follow Next.
	Histories *Histories
	// PromptRows > 0 gives groups of KindPrompt bits of their own, as GPUs do: logits after one are larger by a factor of
	// up to 1 + 2^-12 that depends on the positions where its pieces, taken 64 rows at a time, began. Info reports the
	// number.
	PromptRows int
	// Text is a model of texts in place of the hash; Accept, EOS, Next and Histories are of no use then. Steps take as
	// long as its pace says, each sequence's on its own.
	Text TextModel
	// CheckFile says whether a path names a file of use; nil = every path does that does not contain "missing".
	CheckFile func(field, path string) error
	// FuseLayers are the layers that the projection at path reads; nil = CaptureLayers.
	FuseLayers func(path string) ([]int32, error)

	// Delays pass before the call computes; they end early with CANCELED when its context does.
	OpenDelay, StepDelay, RowDelay, ProposeDelay, ScoreDelay time.Duration
	// FailAfterSteps poisons the engine at that step or proposal, counted from 1 (0 = never): INTERNAL from then on.
	FailAfterSteps int
	// CrashAfterSteps loses the engine at that step or proposal: ENGINE_LOST from then on, Done is closed.
	CrashAfterSteps int
	// FailOpen is returned by Open.
	FailOpen error
}

func (o Options) withDefaults() Options {
	set := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	set(&o.Vocab, 64)
	set(&o.Hidden, 16)
	set(&o.Layers, 4)
	set(&o.Context, 4096)
	set(&o.BlockSize, 8)
	if o.CaptureLayers == nil {
		o.CaptureLayers = []int32{1, 3}
	}
	if o.Accept == 0 {
		o.Accept = 0.7
	}
	if o.Arch == "" {
		o.Arch = "fake"
	}
	if o.Backend == "" {
		o.Backend = "fake"
	}
	if o.CheckFile == nil {
		o.CheckFile = checkPath
	}
	if o.FuseLayers == nil {
		layers := o.CaptureLayers
		o.FuseLayers = func(string) ([]int32, error) { return layers, nil }
	}
	return o
}
