package enginefake

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/stepcheck"
	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Opener opens fake engines. A model path that contains "missing" is not found; other paths only name the model: states
// exported by engines of different paths do not fit each other.
type Opener struct {
	Options Options

	mu     sync.Mutex
	opened []*Engine
}

// New returns an Opener.
func New(o Options) *Opener { return &Opener{Options: o} }

// Opened lists the engines so far, oldest first, for tests that inject faults.
func (o *Opener) Opened() []*Engine {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.opened)
}

// Sequences, Target, Draft and Scorer are open fakes of the roles.
type (
	Sequences struct{ *Engine }
	Target    struct{ Sequences }
	Draft     struct{ Sequences }
	Scorer    struct{ *Engine }
)

// Engine is what all fakes have in common. Besides engine.Engine it has Crash, Done and Err.
type Engine struct {
	role    engine.Role
	options engine.OpenOptions
	m       model
	turn    engine.Submitter
	opened  time.Time

	infoMu sync.Mutex // guards info, which SetCapture and LoadFuse change
	info   engine.Info

	steps, rows, commits, proposals, scores atomic.Uint64

	doneMu sync.Mutex // guards lost and closing of done
	lost   error
	done   chan struct{}

	handles engine.HandleTable // what the maps below hold

	// Guarded by turn.
	pool         pool
	sequences    map[engine.Sequence]*sequence
	snapshots    map[engine.Snapshot]*sequence
	nextSequence engine.Sequence
	nextSnapshot engine.Snapshot
	w            work
}

// work is scratch memory of calls.
type work struct {
	logits, choice []float32
	order          []int32
	probs          []float64
	counts         []int32
	history        []int32
	hashes         []uint64
	groups         []group // of the step
	checker        stepcheck.Checker[*sequence]
	ids            []int32
	peaks          []Peak
	hint           []byte
}

// cost of states in the fake's memory plan.
const (
	weightBytes      = 1 << 20
	stateBytes       = 1 << 10
	kvBytesPerToken  = 64
	snapshotOverhead = 256
)

// OpenTarget implements engine.Opener, as do the methods below.
func (o *Opener) OpenTarget(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	e, err := o.open(ctx, engine.RoleTarget, options, p)
	if err != nil {
		return nil, err
	}
	return &Target{Sequences{e}}, nil
}

// OpenDraft opens a draft.
func (o *Opener) OpenDraft(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Draft, error) {
	e, err := o.open(ctx, engine.RoleDraft, options, p)
	if err != nil {
		return nil, err
	}
	return &Draft{Sequences{e}}, nil
}

// OpenScorer opens a scorer.
func (o *Opener) OpenScorer(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Scorer, error) {
	e, err := o.open(ctx, engine.RoleScore, options, p)
	if err != nil {
		return nil, err
	}
	return &Scorer{e}, nil
}

func (o *Opener) open(ctx context.Context, role engine.Role, options engine.OpenOptions,
	progress engine.Progress) (*Engine, error) {
	f := o.Options.withDefaults()
	if f.FailOpen != nil {
		return nil, f.FailOpen
	}
	if err := complete(role, &options, f); err != nil {
		return nil, err
	}
	for i := range uint64(4) {
		if err := wait(ctx, f.OpenDelay/4); err != nil {
			return nil, err
		}
		if progress != nil {
			progress((i+1)*weightBytes/4, weightBytes)
		}
	}
	e := &Engine{
		role: role, options: options, m: model{f}, turn: engine.NewSubmitter(), opened: time.Now(), done: make(chan struct{}),
		sequences: map[engine.Sequence]*sequence{}, snapshots: map[engine.Snapshot]*sequence{},
	}
	e.info = e.describe()
	pending := options.MaxTreeRows
	if role == engine.RoleDraft {
		pending = f.BlockSize
	}
	e.pool.size = poolPages(&options, pending)
	e.pool.free = e.pool.size
	o.mu.Lock()
	o.opened = append(o.opened, e)
	o.mu.Unlock()
	return e, nil
}

// complete checks options and fills in defaults, as tnd_open does.
func complete(role engine.Role, o *engine.OpenOptions, f Options) error {
	bad := rpcerr.InvalidArgument
	switch {
	case role == engine.RoleDraft && o.TablesPath == "":
		return bad("tables_path", "a draft needs the target's tables")
	case o.Device != "" && o.Device != "cpu":
		return bad("device", "this library serves cpu, got %q", o.Device)
	case o.Threads < 0:
		return bad("threads", "must be >= 0, got %d", o.Threads)
	case o.MaxSequences < 0:
		return bad("max_sequences", "must be >= 0, got %d", o.MaxSequences)
	case o.MaxContext < 0 || o.MaxContext > f.Context:
		return bad("max_context", "must be in 0..%d, got %d", f.Context, o.MaxContext)
	case o.KVPositions < 0 || o.KVPositions != 0 && (role == engine.RoleScore || o.KVPositions < o.MaxContext):
		return bad("kv_positions", "must be 0 or at least max_context, and 0 for a scorer, got %d", o.KVPositions)
	case o.HostCapBytes != 0 && role == engine.RoleScore:
		return bad("host_cap_bytes", "must be 0 for a scorer, got %d", o.HostCapBytes)
	case role != engine.RoleTarget && o.AttentionWindow != 0:
		return bad("attention_window", "must be 0 but for targets, got %d", o.AttentionWindow)
	case o.AttentionWindow != 0 && (o.AttentionWindow < engine.LeastWindow || o.AttentionWindow > engine.MostWindow):
		return bad("attention_window", "must be 0 or in %d..%d, got %d", engine.LeastWindow, engine.MostWindow,
			o.AttentionWindow)
	case o.MaxTreeRows < 0 || o.MaxTreeRows > 128:
		return bad("max_tree_rows", "must be in 0..128, got %d", o.MaxTreeRows)
	case o.MaxBatchRows < 0:
		return bad("max_batch_rows", "must be >= 0, got %d", o.MaxBatchRows)
	case o.MaxTopK < 0 || o.MaxTopK > f.Vocab && f.Vocab >= 64:
		return bad("max_top_k", "must be in 0..%d, got %d", f.Vocab, o.MaxTopK)
	case o.LayerFirst < 0 || o.LayerFirst >= f.Layers:
		return bad("layer_first", "must be in 0..%d, got %d", f.Layers-1, o.LayerFirst)
	case o.LayerLast < 0 || o.LayerLast > f.Layers || o.LayerLast != 0 && o.LayerLast <= o.LayerFirst:
		return bad("layer_last", "must be in %d..%d, got %d", o.LayerFirst+1, f.Layers, o.LayerLast)
	}
	if err := f.CheckFile("model_path", o.ModelPath); err != nil {
		return err
	}
	if role == engine.RoleDraft {
		if err := f.CheckFile("tables_path", o.TablesPath); err != nil {
			return err
		}
	}
	for name, t := range map[string]int32{"kv_type_k": o.KVTypeK, "kv_type_v": o.KVTypeV} {
		if t != engine.KVDefault && t != engine.KVAuto && t != 0 && t != 1 && t != 8 {
			return rpcerr.Unimplemented("%s: ggml type %d is not supported", name, t)
		}
	}
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.MaxTreeRows, 64)
	def(&o.MaxBatchRows, 512)
	def(&o.MaxTopK, min(64, f.Vocab))
	def(&o.LayerLast, f.Layers)
	chooseTypes(o, f)
	contexts := o.MaxSequences // full ones that an automatic pool holds
	if o.MaxSequences == 0 {
		o.MaxSequences = autoSequences(role, o, f)
		contexts = min(o.MaxSequences, mostContexts)
	}
	room := f.Context * contexts // positions within the cap
	if o.MemoryCapBytes > 0 {
		fixed := weights(o, f) + uint64(o.MaxSequences)*stateBytes
		if smallest := fixed + perToken(o, f)*uint64(max(o.MaxContext, o.KVPositions, 1)); smallest > o.MemoryCapBytes {
			return rpcerr.MemoryCap.With("memory_cap_bytes: %d bytes are needed, the cap is %d", smallest, o.MemoryCapBytes)
		}
		room = int(min(uint64(room), (o.MemoryCapBytes-fixed)/perToken(o, f)))
	}
	if o.KVPositions > 0 {
		room = o.KVPositions
	}
	if o.MaxContext == 0 {
		o.MaxContext = min(f.Context, room)
	}
	o.KVPositions = min(room, o.MaxContext*contexts)
	if role == engine.RoleScore {
		o.KVPositions = 0
	}
	return nil
}

// chooseTypes sets the types that are left to the engine: F16, and for automatic ones Q8_0 when one context is too
// long for the cap with it.
func chooseTypes(o *engine.OpenOptions, f Options) {
	f16, q8 := *o, *o
	for _, p := range []struct {
		asked     int32
		f16, less *int32
	}{{o.KVTypeK, &f16.KVTypeK, &q8.KVTypeK}, {o.KVTypeV, &f16.KVTypeV, &q8.KVTypeV}} {
		switch p.asked {
		case engine.KVDefault:
			*p.f16, *p.less = 1, 1
		case engine.KVAuto:
			*p.f16, *p.less = 1, 8
		}
	}
	needs := weights(o, f) + uint64(max(o.MaxSequences, 1))*stateBytes +
		perToken(&f16, f)*uint64(max(o.KVPositions, cmp.Or(o.MaxContext, f.Context)))
	if o.MemoryCapBytes > 0 && needs > o.MemoryCapBytes {
		f16 = q8
	}
	o.KVTypeK, o.KVTypeV = f16.KVTypeK, f16.KVTypeV
}

// weights is what the layers of an engine take.
func weights(o *engine.OpenOptions, f Options) uint64 {
	return weightBytes * uint64(o.LayerLast-o.LayerFirst) / uint64(f.Layers)
}

// perToken is the cost of a position: Q8_0 takes half of what the other types take.
func perToken(o *engine.OpenOptions, f Options) uint64 {
	bytes := uint64(0)
	for _, t := range []int32{o.KVTypeK, o.KVTypeV} {
		if t == 8 {
			bytes += kvBytesPerToken / 4
		} else {
			bytes += kvBytesPerToken / 2
		}
	}
	return bytes * uint64(o.LayerLast-o.LayerFirst) / uint64(f.Layers)
}

// What engines choose by themselves: sequences, and full contexts of the pool that these share.
const (
	mostSequences = 32
	mostContexts  = 4
)

// autoSequences is an automatic number of sequences. Those after the first take at most a quarter of what one with a
// full context leaves of the cap.
func autoSequences(role engine.Role, o *engine.OpenOptions, f Options) int {
	switch {
	case role == engine.RoleScore:
		return 1
	case o.MemoryCapBytes == 0:
		return mostSequences
	}
	alone := weights(o, f) + stateBytes + perToken(o, f)*uint64(max(o.KVPositions, cmp.Or(o.MaxContext, f.Context)))
	if alone > o.MemoryCapBytes {
		return 1
	}
	return 1 + int(min(mostSequences-1, (o.MemoryCapBytes-alone)/4/stateBytes))
}

func (e *Engine) describe() engine.Info {
	o, f := &e.options, &e.m.o
	name := f.Name
	if name == "" {
		name = "fake-" + [...]string{"", "target", "draft", "score"}[e.role]
	}
	i := engine.Info{
		Role: e.role, Arch: f.Arch, Name: name, Backend: f.Backend, Device: "pure Go",
		Layers: f.Layers, LayerFirst: o.LayerFirst, LayerLast: o.LayerLast, Hidden: f.Hidden, Vocab: f.Vocab,
		MaxSequences: o.MaxSequences, MaxContext: o.MaxContext, MaxTreeRows: o.MaxTreeRows, MaxBatchRows: o.MaxBatchRows,
		MaxTopK: o.MaxTopK, KVTypeK: o.KVTypeK, KVTypeV: o.KVTypeV, Recurrent: !f.Truncatable && e.role == engine.RoleTarget,
		Numerics: f.Backend + " fake=1", KVBytesPerToken: perToken(o, *f), StateBytesPerSequence: stateBytes,
		KVPositions: o.KVPositions,
	}
	if e.role != engine.RoleScore {
		i.KVPage = kvPage
	}
	if o.AttentionWindow > 0 {
		i.Numerics += fmt.Sprintf(" window=%d", o.AttentionWindow)
	}
	if e.role == engine.RoleTarget {
		i.PromptRows, i.Concurrent = f.PromptRows, f.Text != nil
	}
	if e.role == engine.RoleDraft {
		i.BlockSize, i.MaskToken = f.BlockSize, f.MaskToken
		i.CaptureLayers = slices.Clone(f.CaptureLayers)
		i.FeatureRaw, i.FeatureFused = len(f.CaptureLayers)*f.Hidden, f.Hidden
	}
	return i
}

// Info implements engine.Engine.
func (e *Engine) Info() engine.Info {
	e.infoMu.Lock()
	defer e.infoMu.Unlock()
	i := e.info
	i.CaptureLayers = slices.Clone(i.CaptureLayers)
	return i
}

// Stats implements engine.Engine.
func (e *Engine) Stats(context.Context) ([]engine.Stat, error) {
	if err := e.Err(); err != nil {
		return nil, err
	}
	return []engine.Stat{
		{Name: "steps", Value: e.steps.Load()}, {Name: "rows", Value: e.rows.Load()},
		{Name: "commits", Value: e.commits.Load()},
		{Name: "proposals", Value: e.proposals.Load()}, {Name: "scores", Value: e.scores.Load()},
		{Name: "graph_runs", Value: e.steps.Load()}, {Name: "graph_captures"}, {Name: "list_runs"}, // as if all were graphs
	}, nil
}

// Memory implements engine.Engine.
func (e *Engine) Memory(context.Context) ([]engine.Stat, error) {
	if err := e.Err(); err != nil {
		return nil, err
	}
	held := []engine.Stat{
		{Name: "weight_bytes", Value: weights(&e.options, e.m.o)},
		{Name: "state_bytes", Value: uint64(e.options.MaxSequences) * stateBytes},
		{Name: "kv_bytes", Value: perToken(&e.options, e.m.o) * uint64(e.options.KVPositions)},
	}
	total := uint64(0)
	for _, m := range held {
		total += m.Value
	}
	return append(held, engine.Stat{Name: "total_bytes", Value: total}), nil
}

// Handles implements engine.Engine.
func (e *Engine) Handles(context.Context) (engine.Handles, error) {
	if err := e.Err(); err != nil {
		return engine.Handles{}, err
	}
	return e.handles.List(), nil
}

// enter waits for the caller's turn on a healthy engine; leave must follow when err is nil.
func (e *Engine) enter(ctx context.Context) error {
	if err := e.Err(); err != nil {
		return err
	}
	if err := e.turn.Acquire(ctx); err != nil {
		return rpcerr.From(err)
	}
	if err := e.Err(); err != nil {
		e.turn.Release()
		return err
	}
	return nil
}

func (e *Engine) leave() { e.turn.Release() }

// strike counts a step or proposal and applies the injected faults.
func (e *Engine) strike() error {
	n := int(e.steps.Load() + e.proposals.Load())
	if k := e.m.o.CrashAfterSteps; k > 0 && n >= k {
		e.Crash()
		return e.Err()
	}
	if k := e.m.o.FailAfterSteps; k > 0 && n >= k {
		e.end(rpcerr.Internal("injected device fault at step %d", n))
	}
	return e.Err()
}

// Crash loses the engine as the death of its process would: every call fails with ENGINE_LOST, Done is closed.
func (e *Engine) Crash() { e.end(rpcerr.EngineLost) }

func (e *Engine) end(err error) {
	e.doneMu.Lock()
	defer e.doneMu.Unlock()
	if e.lost == nil {
		e.lost = err
		close(e.done)
	}
}

// Done implements engine.Mortal: closed when the engine is lost or closed.
func (e *Engine) Done() <-chan struct{} { return e.done }

// Err implements engine.Mortal: nil while the engine lives.
func (e *Engine) Err() error {
	e.doneMu.Lock()
	defer e.doneMu.Unlock()
	return e.lost
}

// Close implements engine.Engine. Calls after it fail with FAILED_PRECONDITION.
func (e *Engine) Close() error {
	e.end(rpcerr.FailedPrecondition("the engine is closed"))
	return nil
}

// Leaks lists what a test forgot to free: sequences and snapshots that still exist.
func (e *Engine) Leaks() (sequences []engine.Sequence, snapshots []engine.Snapshot) {
	_ = e.turn.Acquire(context.Background())
	defer e.leave()
	return slices.Sorted(maps.Keys(e.sequences)), slices.Sorted(maps.Keys(e.snapshots))
}

// wait waits, or fails with CANCELED or DEADLINE_EXCEEDED when ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return rpcerr.From(err)
	}
	if d <= 0 {
		return nil
	}
	if !pause.For(ctx, d) {
		return rpcerr.From(ctx.Err())
	}
	return nil
}
