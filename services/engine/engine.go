// Package engine holds the contract between workers and native engines: an interface for each role (Target, Draft,
// Scorer), and the guards through which workers use an engine, so that none of its sequences is lost. Package host runs
// engines as processes of their own, wire is the codec of what crosses to them; enginefake is an engine for tests,
// enginetest the conformance suite that every implementation passes.
//
// The interfaces mirror native/include/tandem/engine.h; that header is the reference for semantics.
//
// Locking: an Engine takes one submitter at a time. Implementations serialise callers themselves in arrival order; a
// caller that waits gives up when its context ends. Stats, Memory, Handles and Info never wait for the submitter.
package engine

import (
	"slices"
	"strings"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// Role says what an engine was opened for.
type Role uint32

// Roles of an engine.
const (
	RoleTarget Role = 1
	RoleDraft  Role = 2
	RoleScore  Role = 3
)

// KVDefault lets the backend choose the type of cached keys or values.
const KVDefault int32 = -1

// KVAuto has the engine choose the type of cached keys or values by memory; engine.h says how. Info has the choice.
const KVAuto int32 = -2

// OpenOptions is tnd_open_options but for the role, which the method of an Opener states.
type OpenOptions struct {
	ModelPath      string
	TablesPath     string // drafts: GGUF with embedding and head of the target
	Device         string // "cpu", "cuda:0", …; empty = first device
	MemoryCapBytes uint64 // 0 = what is free
	Threads        int    // 0 = one per core
	MaxSequences   int    // 0 = 32 as far as memory allows, see engine.h; Info has the number
	MaxContext     int    // 0 = the model's, as far as the cap and KVPositions allow
	MaxTreeRows    int    // 0 = 64
	MaxBatchRows   int    // 0 = 512
	KVTypeK        int32
	KVTypeV        int32
	LayerFirst     int
	LayerLast      int // 0 = all
	MaxTopK        int // 0 = 64
	// KVPositions is the pool of keys and values in positions of all sequences together, at least MaxContext; 0 =
	// MaxSequences * MaxContext, at most 4 * MaxContext when MaxSequences is 0, as far as the cap allows, at least
	// MaxContext. Scorers have none.
	KVPositions int
	// HostCapBytes is the host memory of snapshots (states and demoted pages); 0 = no limit, but for an engine on the
	// host what MemoryCapBytes leaves.
	HostCapBytes uint64
	// AttentionWindow is the number of newest positions, its own with them, that a target's row reads in layers of full
	// attention, at least 128; 0 = all. Info.Numerics names it, since texts are others. Drafts and scorers have none.
	AttentionWindow int
}

// LeastWindow and MostWindow bound OpenOptions.AttentionWindow: a row sees at least all of its uncommitted ancestors.
const LeastWindow, MostWindow = 128, 1 << 24

// Info is tnd_info.
type Info struct {
	Role                               Role
	Arch, Name, Backend, Device        string
	Layers, LayerFirst, LayerLast      int
	Hidden, Vocab                      int
	MaxSequences, MaxContext           int
	MaxTreeRows, MaxBatchRows, MaxTopK int
	KVTypeK, KVTypeV                   int32
	BlockSize                          int
	MaskToken                          int32
	CaptureLayers                      []int32
	FeatureRaw, FeatureFused           int // values per row; FeatureFused is 0 without a loaded fc
	Recurrent                          bool
	FuseRaw                            int // values of a raw row that Target.Fuse takes; 0 without a loaded fc
	KVPositions, KVPage                int // sequences of together KVPositions find room; positions of a page
	KVBytesPerToken                    uint64
	StateBytesPerSequence              uint64
	// Numerics names the engine's arithmetic: backend, kind of device, versions of the sets of kernels with bits of their
	// own.
	Numerics string
	// PromptRows is 0 when both kinds of groups have the same bits; else a prompt piece of more rows is stated as
	// KindPrompt.
	PromptRows int
	// Concurrent reports that steps of different sequences run at the same time: nothing is gained by joining them.
	Concurrent bool
	// Depth is the number of steps that keep the whole engine busy, 0 = one: a target in stages runs a step in each.
	Depth int
	// Stages of a target whose layers are spread over several engines; nil = one engine has them.
	Stages []Stage
}

// Runs reports whether the engine, or one of its stages, runs on a backend: "cpu", "cuda", "hip".
func (i *Info) Runs(backend string) bool {
	return slices.Contains(strings.Split(i.Backend, "+"), backend)
}

// Stage is one of a target's engines, with the layers [First, Last).
type Stage struct {
	Device      string
	First, Last int
	Rows        RowsWay // of the hidden rows that it gets; empty for the first stage
}

// RowsWay is how hidden rows come to a stage.
type RowsWay string

// Ways of hidden rows.
const (
	RowsInMemory RowsWay = "memory" // both stages see the memory that they lie in
	RowsDirect   RowsWay = "direct" // straight from the stage before
	RowsByHead   RowsWay = "head"   // through the first stage's worker
)

// Sequence is a handle of an engine's sequence, Snapshot one of a stored state.
type (
	Sequence int32
	Snapshot int32
)

// Want bits of a Row.
const (
	WantToken    uint32 = 1
	WantTop      uint32 = 2
	WantLogits   uint32 = 4
	WantFeatures uint32 = 8
	WantScore    uint32 = 16
	WantKeep     uint32 = 32 // features stay in the engine, to be read by Group.Kept
)

// KeptRows is how many of a sequence's rows that want WantKeep are kept, the newest; TND_KEPT_ROWS.
const KeptRows = 32

// Row is one row of a Group, tnd_row.
type Row struct {
	Token    int32
	Position int32
	Parent   int32 // index within the group, -1 = tip of the sequence
	Want     uint32
	TopK     int32
	Score    int32
	Mask     int32 // row of Step.Masks, -1 = all tokens allowed
}

// FeatureEncoding says what a feature row holds. It is defined in proto/tandem/v1/common.proto; its numbers are
// TND_FEATURE_*.
type FeatureEncoding = tandemv1.FeatureEncoding

// Feature encodings.
const (
	FeatureNone      = tandemv1.FeatureEncoding_FEATURE_ENCODING_UNSPECIFIED
	FeatureRawBF16   = tandemv1.FeatureEncoding_FEATURE_ENCODING_RAW_BF16
	FeatureFusedBF16 = tandemv1.FeatureEncoding_FEATURE_ENCODING_FUSED_BF16
	FeatureRawF32    = tandemv1.FeatureEncoding_FEATURE_ENCODING_RAW_F32
	FeatureFusedF32  = tandemv1.FeatureEncoding_FEATURE_ENCODING_FUSED_F32
)

// HiddenEncoding says what the rows hold that shards hand on, TND_HIDDEN_*.
type HiddenEncoding int32

// Hidden encodings.
const (
	HiddenF32 HiddenEncoding = 0 // as they are
	// half the bytes, rounded to nearest even: other bits than those of an engine with all layers
	HiddenBF16 HiddenEncoding = 1
)

// Bytes is the size of a value, 0 for an unknown encoding.
func (e HiddenEncoding) Bytes() int {
	switch e {
	case HiddenF32:
		return 4
	case HiddenBF16:
		return 2
	}
	return 0
}

// GroupKind is the numeric contract of a group's rows, TND_GROUP_*. It is stated, never derived from their number.
type GroupKind uint32

// Kinds of groups.
const (
	KindDecode GroupKind = 0 // rows of decoding, verification and replay, and prompt pieces with their bits
	KindPrompt GroupKind = 1 // rows of a prompt piece; needs Commit
)

// Group is one sequence in a Step, tnd_group. First Path is committed and the other pending rows of the sequence are
// dropped, then Kept is read, then the rows run behind the new tip. A sequence occurs at most once in a step; one that
// no group names is not touched.
type Group struct {
	Sequence Sequence
	Rows     int // of Step.Rows, after those of the groups before; may be 0
	Kind     GroupKind
	Commit   bool // the rows are a chain from the tip, and the step commits them; without it they stay pending
	// pending rows to commit, indices within the sequence's group of its last step; each the parent of the next
	Path  []int32
	Kept  KeptRange // features to read once Path is committed
	Trace Trace
}

// Trace names the span that work in the engine is part of. The zero value says that the work is not traced.
type Trace struct {
	High, Low uint64 // halves of the trace id
	Span      uint64
	Sampled   bool // the trace is exported, not only kept for a while
}

// On reports whether the work is traced.
func (t *Trace) On() bool { return t.Span != 0 }

// KeptRange names committed positions from Position on whose rows wanted WantKeep; the zero value names none.
type KeptRange struct {
	Position int32
	Rows     int32
}

// Step is one call over the groups of one or more sequences. What it asks for is checked before anything changes: after
// INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED and FAILED_PRECONDITION every sequence is as it was. When a step
// fails otherwise, or is cancelled, the paths are committed, nothing is pending, and the sequences of committing groups
// are broken.
type Step struct {
	Groups   []Group
	Rows     []Row // group by group
	Masks    []uint32
	NMasks   int
	HiddenIn []byte         // [len(Rows), hidden] in Hidden, little-endian, when the shard does not start at layer 0
	Hidden   HiddenEncoding // of HiddenIn and StepResult.HiddenOut
	// RowsFrom is the number under which HiddenIn comes straight from the stage before, RowsTo that under which HiddenOut
	// goes straight to the next one, where package border has linked them; 0 = they come and go with the step.
	RowsFrom, RowsTo uint64
	Features         FeatureEncoding
	// Passed, if it is set, is called once the first stage of a target in stages has run the step: whoever calls Step now
	// has that one's place behind it. A step that is refused, and other engines, do not call it.
	Passed func()
}

// StepResult receives the outputs of a Step. Its slices are reused: pass the same value again to avoid allocation; they
// are valid until it is passed to Step again.
type StepResult struct {
	Tokens      []int32   // [rows], -1 where not wanted
	Logprobs    []float32 // [rows] of Tokens
	Scores      []float32 // [rows] of Row.Score
	TopStride   int
	TopIDs      []int32   // [rows, TopStride], -1 beyond a row's TopK
	TopLogprobs []float32 // [rows, TopStride]
	Logits      []float32 // [rows that want them, vocab]
	Features    []byte    // [kept rows of all groups, then rows that want them, width] in the step's encoding, little-endian
	HiddenOut   []byte    // [rows, hidden] in the step's Hidden, little-endian, when the shard does not end at the last layer
	EngineNanos int64     // time inside the native engine
	BatchRows   int       // rows that ran together with those of the step, these included; 0 = these alone
	PromptRows  int       // of them, those of pieces of prompts
	BatchRounds int       // steps that the other ones of them are of
}

// DraftRequest is tnd_draft_request.
type DraftRequest struct {
	Sequence    Sequence
	Token       int32
	Position    int32
	Block       int32
	TopK        int32
	Temperature float32
	Trace       Trace
}

// FeatureRows are features of committed positions, to be appended to a draft's sequence before proposals are made.
type FeatureRows struct {
	Sequence Sequence
	Position int32
	Rows     int32
	Encoding FeatureEncoding
	Data     []byte // [Rows, width], borrowed until the call returns
}

// RawFeatures are features of all layers that a loaded fuse reads, computed elsewhere.
type RawFeatures struct {
	Rows     int32
	Kind     GroupKind // of the group that they are of: the contract in which they are fused
	Encoding FeatureEncoding
	Data     []byte // [Rows, Info.FuseRaw], layers ascending
}

// DraftResult receives proposals; slices are reused like those of StepResult.
type DraftResult struct {
	Stride      int       // candidates per position
	Positions   int       // positions per request: block size - 1
	IDs         []int32   // [requests, Positions, Stride], -1 beyond a request's block or top-k
	Logprobs    []float32 // same shape
	EngineNanos int64     // time inside the native engine
	AppendNanos int64     // the part of it that appending the features took
}

// Stat is a named counter or size.
type Stat struct {
	Name  string
	Value uint64
}

// Prompt is what a scorer rates; tnd_score_prompt.
type Prompt struct {
	IDs       []int32
	QueryRows []int32 // ascending positions
}

// Progress is called with bytes while weights load, and with rows times layers while prompts are scored.
type Progress func(done, total uint64)
