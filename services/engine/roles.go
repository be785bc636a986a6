package engine

import (
	"context"

	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc/codes"
)

// Engine is what engines of all roles have in common: one open model on one device. Errors carry a gRPC status code
// (rpcerr.Code).
type Engine interface {
	Info() Info
	Stats(ctx context.Context) ([]Stat, error)
	Memory(ctx context.Context) ([]Stat, error)
	// Handles lists what exists in the engine.
	Handles(ctx context.Context) (Handles, error)
	// Close frees the engine; the plugin client also ends the engine process.
	Close() error
}

// Sequences is what targets and drafts have in common: an Engine with sequences and snapshots of them.
type Sequences interface {
	Engine

	NewSequence(ctx context.Context) (Sequence, error)
	// Fork makes a sequence in the state of another one, but for its sampler, pending rows and kept features. They share
	// the pages of their positions; either copies a page before it writes to it.
	Fork(ctx context.Context, s Sequence) (Sequence, error)
	FreeSequence(ctx context.Context, s Sequence) error
	SequenceLength(ctx context.Context, s Sequence) (int, error)
	Truncate(ctx context.Context, s Sequence, length int) error

	// NewSnapshot shares the pages of a sequence and copies its state to host memory.
	NewSnapshot(ctx context.Context, s Sequence) (Snapshot, error)
	RestoreSnapshot(ctx context.Context, p Snapshot, s Sequence) error
	// DemoteSnapshot moves the snapshot's pages that no sequence holds to host memory. RestoreSnapshot brings them back.
	DemoteSnapshot(ctx context.Context, p Snapshot) error
	FreeSnapshot(ctx context.Context, p Snapshot) error
	Export(ctx context.Context, s Sequence) ([]byte, error)
	Import(ctx context.Context, s Sequence, state []byte) error
}

// Target is an engine that decodes and verifies: tnd_step and what belongs to it.
type Target interface {
	Sequences
	SnapshotParts

	SetSampler(ctx context.Context, s Sequence, sampler Sampler) error
	// Step commits the groups' paths, reads kept features, then runs the rows, of which there may be none.
	Step(ctx context.Context, step *Step, result *StepResult) error
	// SetCapture chooses captured layers; LoadFuse loads fc and norm of a draft and captures its layers.
	SetCapture(ctx context.Context, layers []int32) error
	LoadFuse(ctx context.Context, path string) error
	// Fuse returns the fused rows of raw features that were computed elsewhere. Those in F32 give the bits of rows that a
	// step fuses.
	Fuse(ctx context.Context, raw RawFeatures, encoding FeatureEncoding) ([]byte, error)
}

// Draft is an engine that proposes blocks of tokens.
type Draft interface {
	Sequences

	// Propose appends features (rows a sequence already has are an error), to several sequences in one pass, then runs one
	// block forward per request. Features that are refused leave every sequence as it was.
	Propose(ctx context.Context, features []FeatureRows, requests []DraftRequest, result *DraftResult) error
}

// Scorer is an engine that rates the tokens of prompts.
type Scorer interface {
	Engine

	// Score returns one score per token of each prompt; all are checked before any is scored. It stops within one layer
	// when ctx ends. progress may be nil; it is called on any goroutine, by one at a time, and not after Score returned.
	Score(ctx context.Context, prompts []Prompt, rotated bool, progress Progress) ([][]float32, error)
}

// Opener opens engines by role: the plugin host, the in-process library and the fake implement it.
type Opener interface {
	OpenTarget(ctx context.Context, options OpenOptions, progress Progress) (Target, error)
	OpenDraft(ctx context.Context, options OpenOptions, progress Progress) (Draft, error)
	OpenScorer(ctx context.Context, options OpenOptions, progress Progress) (Scorer, error)
}

// Open opens engines of one role: a method of an Opener.
type Open[E Engine] func(ctx context.Context, options OpenOptions, progress Progress) (E, error)

// Refused reports whether a call of an engine failed before it changed anything: it was wrong, or there was no room.
// After other errors the sequences of a step may be broken, and the engine of no more use.
func Refused(err error) bool {
	switch rpcerr.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.ResourceExhausted, codes.FailedPrecondition:
		return true
	}
	return false
}
