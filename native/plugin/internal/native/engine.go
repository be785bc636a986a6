package native

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// sequences, target, draft and scorer are open handles of the roles.
type (
	sequences struct{ *nativeEngine }
	target    struct{ sequences }
	draft     struct{ sequences }
	scorer    struct{ *nativeEngine }
)

// nativeEngine is one open handle.
//
// Lock order: turn before life. Calls that submit hold turn and read-lock life; statistics read-lock life only; Close
// takes both, so that no call meets a freed handle.
type nativeEngine struct {
	lib    *Library
	handle uintptr
	hooks  uintptr
	turn   engine.Submitter
	watch  *engine.CallWatch

	life   sync.RWMutex // guards closed and the handle's existence
	closed bool

	handles engine.HandleTable

	infoMu sync.Mutex // guards info
	info   engine.Info

	lostMu sync.Mutex // guards lost and closing of done
	lost   error
	done   chan struct{}

	// Guarded by turn.
	calls    uint64
	step     cStep
	groups   []cGroup        // of step
	pieces   []cFeatureRows  // of an append
	requests []cDraftRequest // of a proposal
	out      outInt
}

// outInt receives numbers from C; on the heap, since C writes to it.
type outInt struct {
	i32 int32
	u64 uint64
}

func newEngine(l *Library, handle, hooks uintptr) *nativeEngine {
	e := &nativeEngine{lib: l, handle: handle, hooks: hooks, turn: engine.NewSubmitter(), done: make(chan struct{})}
	e.watch = engine.NewCallWatch(e.interrupt)
	return e
}

var errClosed = rpcerr.FailedPrecondition("the engine is closed")

// cancelRepeat is the pause between two cancels: the first may have come before the call reached the engine.
const cancelRepeat = 200 * time.Microsecond

// interrupt cancels call id until it has returned. The handle lives as long as the call, which read-locks life.
func (e *nativeEngine) interrupt(id uint64) {
	for e.watch.WhileRunning(id, func() { purego.SyscallN(e.lib.sym.cancel, e.handle) }) {
		time.Sleep(cancelRepeat)
	}
}

// enter waits for the caller's turn; leave must follow when err is nil.
func (e *nativeEngine) enter(ctx context.Context) error {
	if err := e.turn.Acquire(ctx); err != nil {
		return rpcerr.From(err)
	}
	e.life.RLock()
	if e.closed {
		e.life.RUnlock()
		e.turn.Release()
		return errClosed
	}
	e.calls++
	if err := e.watch.Begin(ctx, e.calls); err != nil {
		e.life.RUnlock()
		e.turn.Release()
		return rpcerr.From(err)
	}
	return nil
}

func (e *nativeEngine) leave() {
	e.watch.End()
	e.life.RUnlock()
	e.turn.Release()
}

// check turns a status into an error. A call that was cancelled on behalf of ctx reports what ctx says.
func (e *nativeEngine) check(ctx context.Context, r uintptr) error {
	code := codes.Code(int32(r))
	if code == codes.OK {
		return nil
	}
	if code == codes.Canceled && ctx.Err() != nil {
		return rpcerr.From(ctx.Err())
	}
	err := failure(code, e.lastError())
	if code == codes.Internal { // a fault poisons the engine
		e.lose(err)
	}
	return err
}

func (e *nativeEngine) lastError() string {
	b := make([]byte, 512)
	for {
		n, _, _ := purego.SyscallN(e.lib.sym.lastError, e.handle, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if int(n) < len(b) || len(b) >= maxTextBytes {
			return text(b)
		}
		b = make([]byte, min(int(n)+1, maxTextBytes))
	}
}

func (e *nativeEngine) lose(err error) {
	e.lostMu.Lock()
	defer e.lostMu.Unlock()
	if e.lost == nil {
		e.lost = err
		close(e.done)
	}
}

// Done implements engine.Mortal.
func (e *nativeEngine) Done() <-chan struct{} { return e.done }

// Err implements engine.Mortal.
func (e *nativeEngine) Err() error {
	e.lostMu.Lock()
	defer e.lostMu.Unlock()
	return e.lost
}

// Close implements engine.Engine. It waits for the running call.
func (e *nativeEngine) Close() error {
	_ = e.turn.Acquire(context.Background())
	defer e.turn.Release()
	e.life.Lock()
	defer e.life.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	e.lose(errClosed)
	e.watch.Close()
	purego.SyscallN(e.lib.sym.close, e.handle)
	hookTable.Delete(e.hooks)
	return nil
}

// refresh reads the info, which capture and fuse change. Callers hold the turn or are alone.
func (e *nativeEngine) refresh() error {
	c := &cInfo{StructSize: uint32(unsafe.Sizeof(cInfo{}))}
	r, _, _ := purego.SyscallN(e.lib.sym.getInfo, e.handle, uintptr(unsafe.Pointer(c)))
	if code := codes.Code(int32(r)); code != codes.OK {
		return failure(code, e.lastError())
	}
	i := engine.Info{
		Role: engine.Role(c.Role), Arch: text(c.Arch[:]), Name: text(c.Name[:]), Backend: text(c.Backend[:]),
		Device: text(c.Device[:]), Layers: int(c.Layers), LayerFirst: int(c.LayerFirst), LayerLast: int(c.LayerLast),
		Hidden: int(c.Hidden), Vocab: int(c.Vocab), MaxSequences: int(c.MaxSequences), MaxContext: int(c.MaxContext),
		MaxTreeRows: int(c.MaxTreeRows), MaxBatchRows: int(c.MaxBatchRows), MaxTopK: int(c.MaxTopK),
		KVTypeK: c.KVTypeK, KVTypeV: c.KVTypeV, BlockSize: int(c.BlockSize), MaskToken: c.MaskToken,
		FeatureRaw: int(c.FeatureRaw), FeatureFused: int(c.FeatureFused), Recurrent: c.Recurrent != 0,
		KVBytesPerToken: c.KVBytesPerToken, StateBytesPerSequence: c.StateBytesPerSequence,
		Numerics: text(c.Numerics[:]), PromptRows: int(c.PromptRows),
		KVPositions: int(c.KVPositions), KVPage: int(c.KVPage), FuseRaw: int(c.FuseRaw),
	}
	n := max(0, min(int(c.Captures), len(c.CaptureLayers)))
	i.CaptureLayers = slices.Clone(c.CaptureLayers[:n])
	e.infoMu.Lock()
	e.info = i
	e.infoMu.Unlock()
	return nil
}

// Info implements engine.Engine.
func (e *nativeEngine) Info() engine.Info {
	e.infoMu.Lock()
	defer e.infoMu.Unlock()
	i := e.info
	i.CaptureLayers = slices.Clone(i.CaptureLayers)
	return i
}

// Stats implements engine.Engine.
func (e *nativeEngine) Stats(context.Context) ([]engine.Stat, error) { return e.list(e.lib.sym.stats) }

// Memory implements engine.Engine.
func (e *nativeEngine) Memory(context.Context) ([]engine.Stat, error) {
	return e.list(e.lib.sym.memory)
}

// Handles implements engine.Engine. The library does not list its handles: this process is its only caller.
func (e *nativeEngine) Handles(context.Context) (engine.Handles, error) {
	e.life.RLock()
	defer e.life.RUnlock()
	if e.closed {
		return engine.Handles{}, errClosed
	}
	return e.handles.List(), nil
}

func (e *nativeEngine) list(fn uintptr) ([]engine.Stat, error) {
	e.life.RLock()
	defer e.life.RUnlock()
	if e.closed {
		return nil, errClosed
	}
	for capacity := uint64(96); ; {
		entries, count := make([]cStat, capacity), new(uint64)
		*count = capacity
		r, _, _ := purego.SyscallN(fn, e.handle, uintptr(unsafe.Pointer(&entries[0])), uintptr(unsafe.Pointer(count)))
		if code := codes.Code(int32(r)); code != codes.OK {
			return nil, failure(code, e.lastError())
		}
		if *count > capacity {
			capacity = *count
			continue
		}
		out := make([]engine.Stat, *count)
		for i := range out {
			out[i] = engine.Stat{Name: text(entries[i].Name[:]), Value: entries[i].Value}
		}
		return out, nil
	}
}

// NewSequence implements engine.Sequences.
func (e *sequences) NewSequence(ctx context.Context) (engine.Sequence, error) {
	return e.create(ctx, e.lib.sym.sequenceCreate)
}

// Fork implements engine.Sequences.
func (e *sequences) Fork(ctx context.Context, s engine.Sequence) (engine.Sequence, error) {
	return e.create(ctx, e.lib.sym.sequenceFork, uintptr(uint32(s)))
}

// create makes a sequence by a function whose last argument is its handle.
func (e *nativeEngine) create(ctx context.Context, fn uintptr, args ...uintptr) (engine.Sequence, error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	args = append([]uintptr{e.handle}, args...)
	r, _, _ := purego.SyscallN(fn, append(args, uintptr(unsafe.Pointer(&e.out.i32)))...)
	if err := e.check(ctx, r); err != nil {
		return 0, err
	}
	s := engine.Sequence(e.out.i32)
	e.handles.AddSequence(s)
	return s, nil
}

// call is a submitting call with one or two 32-bit arguments; a function of one does not look at b.
func (e *nativeEngine) call(ctx context.Context, fn uintptr, a, b int32) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	r, _, _ := purego.SyscallN(fn, e.handle, uintptr(uint32(a)), uintptr(uint32(b)))
	return e.check(ctx, r)
}

// free frees a handle and strikes it off while nobody else can be given the same one.
func (e *nativeEngine) free(ctx context.Context, fn uintptr, handle int32, strike func()) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	r, _, _ := purego.SyscallN(fn, e.handle, uintptr(uint32(handle)))
	err := e.check(ctx, r)
	if err == nil {
		strike()
	}
	return err
}

// FreeSequence implements engine.Sequences.
func (e *sequences) FreeSequence(ctx context.Context, s engine.Sequence) error {
	return e.free(ctx, e.lib.sym.sequenceFree, int32(s), func() { e.handles.DropSequence(s) })
}

// SequenceLength implements engine.Sequences.
func (e *sequences) SequenceLength(ctx context.Context, s engine.Sequence) (int, error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	r, _, _ := purego.SyscallN(e.lib.sym.sequenceLength, e.handle, uintptr(uint32(s)), uintptr(unsafe.Pointer(&e.out.i32)))
	if err := e.check(ctx, r); err != nil {
		return 0, err
	}
	return int(e.out.i32), nil
}

// Truncate implements engine.Sequences.
func (e *sequences) Truncate(ctx context.Context, s engine.Sequence, length int) error {
	if int(int32(length)) != length {
		return rpcerr.InvalidArgument("length", "%d is out of range", length)
	}
	return e.call(ctx, e.lib.sym.sequenceTruncate, int32(s), int32(length))
}

// SetSampler implements engine.Target.
func (e *target) SetSampler(ctx context.Context, s engine.Sequence, p engine.Sampler) error {
	if len(p.BiasTokens) != len(p.BiasValues) {
		return rpcerr.InvalidArgument("bias_values", "has %d values for %d tokens", len(p.BiasValues), len(p.BiasTokens))
	}
	c := samplerToC(&p)
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	r, _, _ := purego.SyscallN(e.lib.sym.sequenceSampler, e.handle, uintptr(uint32(s)), uintptr(unsafe.Pointer(c)))
	runtime.KeepAlive(c)
	return e.check(ctx, r)
}

// samplerToC returns p in the layout of C. It points into p's lists.
func samplerToC(p *engine.Sampler) *cSampler {
	return &cSampler{
		StructSize: uint32(unsafe.Sizeof(cSampler{})),
		TopK:       p.TopK, Temperature: p.Temperature, TopP: p.TopP, MinP: p.MinP,
		RepetitionPenalty: p.RepetitionPenalty, FrequencyPenalty: p.FrequencyPenalty,
		PresencePenalty: p.PresencePenalty, PenaltyWindow: p.PenaltyWindow, PromptTokens: p.PromptTokens,
		Seed: p.Seed, Choice: p.Choice,
		Biases: int32(len(p.BiasTokens)), BiasTokens: pointer(p.BiasTokens), BiasValues: pointer(p.BiasValues),
	}
}

// NewSnapshot implements engine.Sequences.
func (e *sequences) NewSnapshot(ctx context.Context, s engine.Sequence) (engine.Snapshot, error) {
	if err := e.enter(ctx); err != nil {
		return 0, err
	}
	defer e.leave()
	r, _, _ := purego.SyscallN(e.lib.sym.snapshotCreate, e.handle, uintptr(uint32(s)), uintptr(unsafe.Pointer(&e.out.i32)))
	if err := e.check(ctx, r); err != nil {
		return 0, err
	}
	p := engine.Snapshot(e.out.i32)
	e.handles.AddSnapshot(p)
	return p, nil
}

// RestoreSnapshot implements engine.Sequences.
func (e *sequences) RestoreSnapshot(ctx context.Context, p engine.Snapshot, s engine.Sequence) error {
	return e.call(ctx, e.lib.sym.snapshotRestore, int32(p), int32(s))
}

// DemoteSnapshot implements engine.Sequences.
func (e *sequences) DemoteSnapshot(ctx context.Context, p engine.Snapshot) error {
	return e.call(ctx, e.lib.sym.snapshotDemote, int32(p), 0)
}

// FreeSnapshot implements engine.Sequences.
func (e *sequences) FreeSnapshot(ctx context.Context, p engine.Snapshot) error {
	return e.free(ctx, e.lib.sym.snapshotFree, int32(p), func() { e.handles.DropSnapshot(p) })
}

// Export implements engine.Sequences.
func (e *sequences) Export(ctx context.Context, s engine.Sequence) ([]byte, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.leave()
	r, _, _ := purego.SyscallN(e.lib.sym.sequenceExportSize, e.handle, uintptr(uint32(s)),
		uintptr(unsafe.Pointer(&e.out.u64)))
	if err := e.check(ctx, r); err != nil {
		return nil, err
	}
	state := make([]byte, e.out.u64)
	r, _, _ = purego.SyscallN(e.lib.sym.sequenceExport, e.handle, uintptr(uint32(s)), uintptr(pointer(state)),
		uintptr(len(state)))
	runtime.KeepAlive(state)
	if err := e.check(ctx, r); err != nil {
		return nil, err
	}
	return state, nil
}

// Import implements engine.Sequences.
func (e *sequences) Import(ctx context.Context, s engine.Sequence, state []byte) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.leave()
	r, _, _ := purego.SyscallN(e.lib.sym.sequenceImport, e.handle, uintptr(uint32(s)), uintptr(pointer(state)),
		uintptr(len(state)))
	runtime.KeepAlive(state)
	return e.check(ctx, r)
}

// pointer to the first element, nil for an empty slice.
func pointer[T any](s []T) unsafe.Pointer {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Pointer(&s[0])
}
