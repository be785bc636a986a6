// Package enginetest is the conformance suite of engines. It tests everything that native/include/tandem/engine.h and
// package engine promise, for every implementation: the fake, the native libraries in process, and engine programs
// behind a connection.
package enginetest

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Models names the files that an Opener opens. An empty path skips the tests that need it.
type Models struct {
	Target string // any target with a head
	Draft  string // a draft trained on Target, with Tables
	Tables string
	Score  string
	// Missing is a path that does not exist.
	Missing string
	// OtherKV is a type of cached keys that the engine has besides its default, for states that must not fit. 0 is F32.
	OtherKV int32
	// Scripted says that the engine's text is given: seeds, temperatures and penalties do not move it. Biases and masks
	// do.
	Scripted bool
}

// Constructor returns a fresh Opener; it registers its own clean-up with t.
type Constructor func(t *testing.T) (engine.Opener, Models)

// Run runs the suite, or only the tests of it that are named.
func Run(t *testing.T, make Constructor, only ...string) {
	for _, c := range []struct {
		name string
		test func(*suite)
	}{
		{"OpenErrors", (*suite).openErrors},
		{"Info", (*suite).info},
		{"Close", (*suite).close},
		{"Sequences", (*suite).sequences},
		{"StepErrors", (*suite).stepErrors},
		{"Outputs", (*suite).outputs},
		{"BatchInvariance", (*suite).batchInvariance},
		{"TreeCommitEqualsPlainDecode", (*suite).treeCommit},
		{"ManySequencesInOneStep", (*suite).manySequences},
		{"PendingRows", (*suite).pendingRows},
		{"Prefill", (*suite).prefill},
		{"RefusedStepChangesNothing", (*suite).atomicErrors},
		{"KindIsStated", (*suite).kinds},
		{"MixesEqualGroupsAlone", (*suite).mixes},
		{"Truncate", (*suite).truncate},
		{"Snapshots", (*suite).snapshots},
		{"Forks", (*suite).forks},
		{"DemotedSnapshots", (*suite).demote},
		{"PoolOptions", (*suite).poolOptions},
		{"AttentionWindow", (*suite).attentionWindow},
		{"AutoSequences", (*suite).autoSequences},
		{"AutoContext", (*suite).autoContext},
		{"SharedPagesEqualSequencesAlone", (*suite).program},
		{"ExportImport", (*suite).exportImport},
		{"ImportDamaged", (*suite).importDamaged},
		{"SnapshotParts", (*suite).parts},
		{"SnapshotPartsDamaged", (*suite).partsDamaged},
		{"SnapshotPartsOfABase", (*suite).partsOfBase},
		{"SnapshotPartsOfAWindow", (*suite).partsOfWindow},
		{"SamplerReproducible", (*suite).samplerReproducible},
		{"SamplerSettings", (*suite).samplerSettings},
		{"SamplerErrors", (*suite).samplerErrors},
		{"SamplerDeclared", (*suite).samplerDeclared},
		{"Masks", (*suite).masks},
		{"Features", (*suite).features},
		{"FusedFeatures", (*suite).fusedFeatures},
		{"Fuse", (*suite).fuse},
		{"KeptFeatures", (*suite).keptFeatures},
		{"Shards", (*suite).shards},
		{"Draft", (*suite).draft},
		{"DraftAppends", (*suite).draftAppends},
		{"DraftErrors", (*suite).draftErrors},
		{"Score", (*suite).score},
		{"ScorePrompts", (*suite).scorePrompts},
		{"ScoreErrors", (*suite).scoreErrors},
		{"Cancel", (*suite).cancel},
		{"CancelPrefill", (*suite).cancelPrefill},
		{"Stats", (*suite).stats},
		{"Handles", (*suite).handles},
		{"Concurrent", (*suite).concurrent},
	} {
		if len(only) > 0 && !slices.Contains(only, c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			opener, models := make(t)
			c.test(&suite{T: t, ctx: t.Context(), opener: opener, models: models,
				rng: rand.New(rand.NewPCG(1, uint64(len(c.name))))})
		})
	}
}

// Sizes that every engine under test is opened with.
const (
	maxContext   = 192
	maxSequences = 4
	treeRows     = 32
	batchRows    = 96
	topK         = 8
	promptTokens = 21
)

type suite struct {
	*testing.T
	ctx    context.Context
	opener engine.Opener
	models Models
	rng    *rand.Rand
}

func options(path string) engine.OpenOptions {
	return engine.OpenOptions{
		ModelPath: path, Threads: 2, MaxSequences: maxSequences, MaxContext: maxContext, MaxTreeRows: treeRows,
		MaxBatchRows: batchRows, MaxTopK: topK, KVTypeK: engine.KVDefault, KVTypeV: engine.KVDefault,
	}
}

// opened opens an engine, or skips the test when there is no model for it, and closes it at the test's end.
func opened[E engine.Engine](s *suite, open engine.Open[E], o engine.OpenOptions) E {
	s.Helper()
	if o.ModelPath == "" {
		s.Skip("no model for this role")
	}
	e, err := open(s.ctx, o, nil)
	if err != nil {
		s.Fatalf("open: %v", err)
	}
	s.Cleanup(func() {
		if err := e.Close(); err != nil {
			s.Errorf("close: %v", err)
		}
	})
	return e
}

func (s *suite) openTarget(o engine.OpenOptions) engine.Target {
	s.Helper()
	return opened(s, s.opener.OpenTarget, o)
}

func (s *suite) target() engine.Target {
	s.Helper()
	return s.openTarget(options(s.models.Target))
}

func (s *suite) draftEngine() engine.Draft {
	s.Helper()
	return opened(s, s.opener.OpenDraft, s.draftOptions())
}

func (s *suite) scorer() engine.Scorer {
	s.Helper()
	return opened(s, s.opener.OpenScorer, options(s.models.Score))
}

func (s *suite) draftOptions() engine.OpenOptions {
	o := options(s.models.Draft)
	o.TablesPath = s.models.Tables
	return o
}

func (s *suite) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// refused checks code and that the text names what is at fault.
func (s *suite) refused(what string, err error, code codes.Code, words ...string) {
	s.Helper()
	switch {
	case err == nil:
		s.Errorf("%s: accepted", what)
	case rpcerr.Code(err) != code:
		s.Errorf("%s: code %v, want %v: %v", what, rpcerr.Code(err), code, err)
	case len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(err.Error(), w) }):
		s.Errorf("%s: text %q names none of %q", what, err, words)
	}
}

func (s *suite) sequence(e engine.Sequences) engine.Sequence {
	s.Helper()
	q, err := e.NewSequence(s.ctx)
	s.ok(err)
	return q
}

func (s *suite) length(e engine.Sequences, q engine.Sequence) int {
	s.Helper()
	n, err := e.SequenceLength(s.ctx, q)
	s.ok(err)
	return n
}

// tokens draws random tokens; the first of the vocabulary are as good as any.
func (s *suite) tokens(e engine.Engine, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(s.rng.IntN(e.Info().Vocab))
	}
	return out
}

// feed commits tokens in one step of decode rows and returns the result of the last one.
func (s *suite) feed(e engine.Target, q engine.Sequence, tokens []int32, want uint32) *engine.StepResult {
	s.Helper()
	r := &engine.StepResult{}
	rows := rowsOf(s.length(e, q), chain(tokens), 0)
	rows[len(rows)-1].Want = want
	s.ok(e.Step(s.ctx, one(engine.Group{Sequence: q, Commit: true}, rows), r))
	return r
}

// one is a step of one group.
func one(g engine.Group, rows []engine.Row) *engine.Step {
	g.Rows = len(rows)
	return &engine.Step{Groups: []engine.Group{g}, Rows: rows}
}

// add appends a group to a step.
func add(step *engine.Step, g engine.Group, rows []engine.Row) {
	g.Rows = len(rows)
	step.Groups, step.Rows = append(step.Groups, g), append(step.Rows, rows...)
}

// pending is a group whose rows stay pending.
func pending(q engine.Sequence) engine.Group { return engine.Group{Sequence: q} }

// node of a tree of rows.
type node struct{ token, parent int32 }

// rowsOf makes rows of a tree that hangs from the tip of a sequence of this length.
func rowsOf(length int, tree []node, want uint32) []engine.Row {
	rows := make([]engine.Row, len(tree))
	for i, n := range tree {
		position := int32(length)
		if n.parent >= 0 {
			position = rows[n.parent].Position + 1
		}
		rows[i] = engine.Row{Token: n.token, Position: position, Parent: n.parent, Want: want, TopK: topK, Score: n.token,
			Mask: -1}
	}
	return rows
}

func chain(tokens []int32) []node {
	out := make([]node, len(tokens))
	for i, t := range tokens {
		out[i] = node{t, int32(i) - 1}
	}
	return out
}

func (s *suite) randomTree(e engine.Target, n int) []node {
	tree := make([]node, n)
	for i, t := range s.tokens(e, n) {
		tree[i] = node{t, int32(s.rng.IntN(i+1)) - 1}
	}
	return tree
}

// pathTo lists the nodes from a child of the tip to node i.
func pathTo(tree []node, i int) []int32 {
	var path []int32
	for at := int32(i); at >= 0; at = tree[at].parent {
		path = append(path, at)
	}
	slices.Reverse(path)
	return path
}

// step runs a tree without committing it.
func (s *suite) step(e engine.Target, q engine.Sequence, tree []node, want uint32) *engine.StepResult {
	s.Helper()
	r := &engine.StepResult{}
	step := one(pending(q), rowsOf(s.length(e, q), tree, want))
	step.Features = encoding(want)
	s.ok(e.Step(s.ctx, step, r))
	return r
}

func encoding(want uint32) engine.FeatureEncoding {
	if want&engine.WantFeatures != 0 {
		return engine.FeatureRawBF16
	}
	return engine.FeatureNone
}

// commit is a step that keeps a path of pending rows; an empty one drops them all.
func commit(q engine.Sequence, path ...int32) *engine.Step {
	return one(engine.Group{Sequence: q, Path: path}, nil)
}

func (s *suite) commit(e engine.Target, q engine.Sequence, path ...int32) {
	s.Helper()
	s.ok(e.Step(s.ctx, commit(q, path...), &engine.StepResult{}))
}

// row returns the outputs of one row as bits, so that they compare exactly.
type row struct {
	token, logprob, score uint32
	top, topLogprobs      []uint32
	logits                []uint32
	features              string
}

func bitsOf(f []float32) []uint32 {
	out := make([]uint32, len(f))
	for i, v := range f {
		out[i] = math.Float32bits(v)
	}
	return out
}

// rowBits picks row i of n rows that all wanted the same.
func rowBits(r *engine.StepResult, i, n int) row {
	out := row{
		token: uint32(r.Tokens[i]), logprob: math.Float32bits(r.Logprobs[i]), score: math.Float32bits(r.Scores[i]),
		topLogprobs: bitsOf(r.TopLogprobs[i*r.TopStride:][:r.TopStride]),
	}
	for _, id := range r.TopIDs[i*r.TopStride:][:r.TopStride] {
		out.top = append(out.top, uint32(id))
	}
	if v := len(r.Logits) / n; v > 0 {
		out.logits = bitsOf(r.Logits[i*v:][:v])
	}
	if w := len(r.Features) / n; w > 0 {
		out.features = string(r.Features[i*w:][:w])
	}
	return out
}

// same compares two rows bit by bit and says where they part.
func (s *suite) same(what string, a, b row) {
	s.Helper()
	switch {
	case !slices.Equal(a.logits, b.logits):
		n := 0
		for i := range a.logits {
			if a.logits[i] != b.logits[i] {
				n++
			}
		}
		s.Errorf("%s: %d of %d logits differ", what, n, len(a.logits))
	case a.token != b.token || a.logprob != b.logprob || a.score != b.score:
		s.Errorf("%s: token %d/%d logprob %x/%x score %x/%x", what, a.token, b.token, a.logprob, b.logprob, a.score, b.score)
	case !slices.Equal(a.top, b.top) || !slices.Equal(a.topLogprobs, b.topLogprobs):
		s.Errorf("%s: the likeliest tokens differ", what)
	case a.features != b.features:
		s.Errorf("%s: features differ", what)
	}
}

const everything = engine.WantToken | engine.WantTop | engine.WantLogits | engine.WantScore
