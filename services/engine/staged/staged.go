// Package staged is a target whose layers are spread over several engines: each runs a range of layers as an engine of
// its own, on its own device, and hands its rows' residual streams to the next. The last one has the head. To its
// callers it is one engine.Target with all layers, and by the same arithmetic its bits are those of one engine. Calls
// follow each other through the stages, so that all devices work when several are made at a time (passage.go).
//
// The engines hold the same sequences and snapshots, and the same number of pages, so that a call which one of them
// refuses is refused by all. What only some of them would refuse is checked here first (package stepcheck).
package staged

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/border"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// Stage says where a range of layers runs.
type Stage struct {
	Open   engine.Open[engine.Target]
	Device string // as in engine.OpenOptions; empty = the options'
	Layers int    // at least 1
}

// Open returns a function that opens the stages as one target. The layers of the stages are all layers of the model;
// options may ask for a range of them. Stages of one device share options.MemoryCapBytes by their layers. rows is what
// stages hand each other: HiddenBF16 is half the bytes, and other bits for each place of a border.
func Open(stages []Stage, rows engine.HiddenEncoding) engine.Open[engine.Target] {
	return func(ctx context.Context, options engine.OpenOptions, progress engine.Progress) (engine.Target, error) {
		return open(ctx, stages, rows, options, progress)
	}
}

// Target is the stages as one engine.
type Target struct {
	stages []engine.Target
	rows   engine.HiddenEncoding // between stages
	turn   engine.Submitter      // of the first stage, see enter
	// numbers of steps' rows, guarded by turn: they ascend in the order in which steps pass the stages.
	numbers uint64

	handles engine.HandleTable

	infoMu sync.Mutex // guards info
	info   engine.Info

	done      chan struct{}
	closeOnce sync.Once
	lostMu    sync.Mutex // guards lost
	lost      error
	watchers  sync.WaitGroup
	closing   chan struct{}
	closeErr  error

	mu           sync.Mutex // guards the fields below, and those of sequences and snapshots
	moved        sync.Cond  // a call has come further
	tickets      uint64     // calls that departed from the first stage
	served       []uint64   // of them, those that each later stage has let go
	flying       int        // calls between the first stage and their end
	sequences    map[engine.Sequence]*sequence
	snapshots    map[engine.Snapshot]*snapshot
	nextSequence engine.Sequence
	nextSnapshot engine.Snapshot
	free         []*work
	borrowed     int              // works that are not free
	borders      []*border.Region // after each stage but the last, nil = rows are sent
	direct       []bool           // after each stage but the last: it sends rows to the next one itself

	// Changed while no call is on its way.
	layouts   []engine.SnapshotLayout // of empty sequences, by stage; nil = not known yet
	window    int                     // engine.OpenOptions.AttentionWindow
	captured  []int                   // values of a raw row of features by stage
	capturing int                     // the stage that has all captured layers, -1 = none or several
}

// progressUnit is what a layer counts for in the progress of loading.
const progressUnit = 1 << 20

func open(ctx context.Context, stages []Stage, rows engine.HiddenEncoding, options engine.OpenOptions,
	progress engine.Progress) (_ *Target, err error) {
	if rows.Bytes() == 0 {
		return nil, rpcerr.InvalidArgument("rows", "unknown encoding %d", rows)
	}
	parts, err := divide(stages, options)
	if err != nil {
		return nil, err
	}
	t := &Target{rows: rows, window: options.AttentionWindow, turn: engine.NewSubmitter(),
		done: make(chan struct{}), closing: make(chan struct{}),
		sequences: map[engine.Sequence]*sequence{}, snapshots: map[engine.Snapshot]*snapshot{}}
	t.moved.L = &t.mu
	defer func() {
		if err != nil {
			_ = t.closeStages() // err says why there is no target
		}
	}()
	total, done := uint64(0), uint64(0)
	for _, p := range parts {
		total += uint64(p.options.LayerLast-p.options.LayerFirst) * progressUnit
	}
	for i, p := range parts {
		layers := uint64(p.options.LayerLast-p.options.LayerFirst) * progressUnit
		e, err := p.stage.Open(ctx, p.options, func(n, all uint64) {
			if progress != nil && all > 0 {
				progress(done+uint64(float64(layers)*(float64(n)/float64(all))), total)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("stage %d of %d (layers %d to %d on %s): %w", i+1, len(parts), p.options.LayerFirst,
				p.options.LayerLast-1, device(p.options.Device), err)
		}
		done += layers
		t.stages = append(t.stages, e)
		if progress != nil {
			progress(done, total)
		}
	}
	if err := t.level(ctx, parts); err != nil {
		return nil, err
	}
	if len(t.stages) == 1 {
		t.rows = engine.HiddenF32 // there is no border
	}
	t.served = make([]uint64, len(t.stages))
	if t.info, err = t.describe(options); err != nil {
		return nil, err
	}
	if err := t.learn(ctx); err != nil && !errors.Is(err, rpcerr.AnyResourceExhausted) { // no room: then later
		return nil, err
	}
	t.share(ctx)
	t.link(ctx)
	for _, e := range t.stages {
		if m, ok := e.(engine.Mortal); ok {
			t.watchers.Go(func() {
				select {
				case <-m.Done():
					t.lose(m.Err())
				case <-t.closing:
				}
			})
		}
	}
	return t, nil
}

// sharedSteps is how many steps on their way have their hidden rows in shared memory; those of more are sent.
const sharedSteps = 4

// share lets the engines of neighbouring stages write and read hidden rows in memory that both see. Where it cannot be
// had, because an engine is on another host or in another container, rows are sent.
func (t *Target) share(ctx context.Context) {
	t.borders = make([]*border.Region, len(t.stages)-1)
	room := t.rows.Bytes() * t.info.MaxBatchRows * t.info.Hidden
	sharers := make([]border.Sharer, len(t.stages))
	for k, e := range t.stages {
		sharers[k], _ = e.(border.Sharer)
	}
	for k := range t.borders {
		if sharers[k] != nil || sharers[k+1] != nil {
			t.borders[k], _ = border.New(sharedSteps, room)
		}
	}
	for k, s := range sharers {
		var in, out *border.Region
		if k > 0 {
			in = t.borders[k-1]
		}
		if k < len(t.borders) {
			out = t.borders[k]
		}
		if s == nil || in == nil && out == nil || s.ShareRows(ctx, in, out) != nil { // its rows are sent then
			sharers[k] = nil
		}
	}
	for k, b := range t.borders {
		if b != nil && sharers[k] != nil && sharers[k+1] != nil {
			t.info.Stages[k+1].Rows = engine.RowsInMemory
		}
	}
	for _, b := range t.borders {
		if b != nil {
			b.Hide()
		}
	}
}

// link has stages on other hosts hand their rows to the next stage themselves, where they reach it. Before a stage
// elsewhere stands this worker at the least, which sends the rows itself.
func (t *Target) link(ctx context.Context) {
	t.direct = make([]bool, len(t.stages)-1)
	var links sync.WaitGroup
	for k := range t.direct {
		if t.info.Stages[k+1].Rows == engine.RowsInMemory {
			continue
		}
		if f, ok := t.stages[k].(border.Forwarder); ok {
			links.Go(func() { t.direct[k] = f.ForwardRows(ctx, t.stages[k+1]) == nil })
		} else if _, elsewhere := t.stages[k+1].(border.Forwarder); elsewhere {
			t.info.Stages[k+1].Rows = engine.RowsDirect
		}
	}
	links.Wait()
	for k, direct := range t.direct {
		if direct {
			t.info.Stages[k+1].Rows = engine.RowsDirect
		}
	}
}

func device(name string) string {
	if name == "" {
		return "the first device"
	}
	return name
}

// part is a stage with the options that it is opened with.
type part struct {
	stage   Stage
	options engine.OpenOptions
}

// divide gives every stage its layers of those that are asked for; stages without any are left out.
func divide(stages []Stage, options engine.OpenOptions) ([]part, error) {
	total := 0
	for i, s := range stages {
		if s.Layers < 1 {
			return nil, rpcerr.InvalidArgument("layers", "stage %d has %d, each needs at least 1", i+1, s.Layers)
		}
		total += s.Layers
	}
	first, last := options.LayerFirst, options.LayerLast
	if last == 0 {
		last = total
	}
	if first < 0 || first >= last || last > total {
		field := "layer_first"
		if last > total {
			field = "layer_last"
		}
		return nil, rpcerr.InvalidArgument(field, "layers %d to %d are asked for, the stages have %d", first, last, total)
	}
	var parts []part
	share := map[string]int{} // layers by device
	at := 0
	for _, s := range stages {
		from, to := max(first, at), min(last, at+s.Layers)
		at += s.Layers
		if from >= to {
			continue
		}
		p := part{s, options}
		p.options.LayerFirst, p.options.LayerLast = from, to
		if s.Device != "" {
			p.options.Device = s.Device
		}
		share[p.options.Device] += to - from
		parts = append(parts, p)
	}
	for i := range parts {
		o := &parts[i].options
		if layers := share[o.Device]; layers != o.LayerLast-o.LayerFirst {
			o.MemoryCapBytes = portion(o.MemoryCapBytes, o.LayerLast-o.LayerFirst, layers)
			o.HostCapBytes = portion(o.HostCapBytes, o.LayerLast-o.LayerFirst, layers)
		}
	}
	return parts, nil
}

// portion of a cap, of which 0 is none.
func portion(limit uint64, layers, of int) uint64 {
	if limit == 0 {
		return 0
	}
	return max(1, uint64(float64(limit)*float64(layers)/float64(of)))
}

// level opens stages that have more sequences, positions or rows than another again, with what all have.
func (t *Target) level(ctx context.Context, parts []part) error {
	least := t.stages[0].Info()
	for _, e := range t.stages[1:] {
		i := e.Info()
		least.MaxSequences = min(least.MaxSequences, i.MaxSequences)
		least.MaxContext = min(least.MaxContext, i.MaxContext)
		least.KVPositions = min(least.KVPositions, i.KVPositions)
		least.MaxBatchRows = min(least.MaxBatchRows, i.MaxBatchRows)
		least.MaxTreeRows = min(least.MaxTreeRows, i.MaxTreeRows)
		least.MaxTopK = min(least.MaxTopK, i.MaxTopK)
	}
	for k, p := range parts {
		i := t.stages[k].Info()
		if i.MaxSequences == least.MaxSequences && i.MaxContext == least.MaxContext && i.KVPositions == least.KVPositions &&
			i.MaxBatchRows == least.MaxBatchRows && i.MaxTreeRows == least.MaxTreeRows && i.MaxTopK == least.MaxTopK {
			continue
		}
		o := p.options
		o.MaxSequences, o.MaxContext, o.KVPositions = least.MaxSequences, least.MaxContext, least.KVPositions
		o.MaxBatchRows, o.MaxTreeRows, o.MaxTopK = least.MaxBatchRows, least.MaxTreeRows, least.MaxTopK
		if err := t.stages[k].Close(); err != nil {
			return err
		}
		e, err := p.stage.Open(ctx, o, nil)
		if err != nil {
			t.stages = slices.Delete(t.stages, k, k+1)
			return fmt.Errorf("stage %d of %d, with the room that all stages have: %w", k+1, len(parts), err)
		}
		t.stages[k] = e
	}
	return nil
}

// describe makes one Info of the stages' and refuses stages that do not fit together.
func (t *Target) describe(options engine.OpenOptions) (engine.Info, error) {
	first, last := t.stages[0].Info(), t.stages[len(t.stages)-1].Info()
	out := first
	if options.LayerLast == 0 && last.LayerLast != last.Layers {
		return out, rpcerr.InvalidArgument("layers", "the stages have %d, the model has %d", last.LayerLast, last.Layers)
	}
	out.LayerLast = last.LayerLast
	out.KVBytesPerToken, out.StateBytesPerSequence, out.Recurrent = 0, 0, false
	var backends, devices []string
	out.Stages = nil
	for k, e := range t.stages {
		i := e.Info()
		stage := engine.Stage{Device: i.Device, First: i.LayerFirst, Last: i.LayerLast}
		if k > 0 {
			stage.Rows = engine.RowsByHead // share and link may find better ways
		}
		out.Stages = append(out.Stages, stage)
		switch {
		case i.Hidden != first.Hidden || i.Vocab != first.Vocab || i.Layers != first.Layers:
			return out, rpcerr.InvalidArgument("model_path", "stage %d opened another model", k+1)
		case i.KVTypeK != first.KVTypeK || i.KVTypeV != first.KVTypeV:
			return out, rpcerr.InvalidArgument("kv_type_k", "stage %d takes types %d and %d of cached keys and values by itself, stage 1 %d and %d: name them", k+1, i.KVTypeK, i.KVTypeV, first.KVTypeK, first.KVTypeV)
		case i.KVPage != first.KVPage:
			return out, rpcerr.InvalidArgument("device", "stage %d has pages of %d positions, stage 1 of %d", k+1, i.KVPage,
				first.KVPage)
		}
		out.KVBytesPerToken += i.KVBytesPerToken
		out.StateBytesPerSequence += i.StateBytesPerSequence
		out.Recurrent = out.Recurrent || i.Recurrent
		out.PromptRows = max(out.PromptRows, i.PromptRows)
		if !slices.Contains(backends, i.Backend) {
			backends = append(backends, i.Backend)
		}
		devices = append(devices, i.Device)
	}
	for k, e := range t.stages {
		// A stage whose kinds of groups have the same bits takes either kind.
		if i := e.Info(); i.PromptRows != 0 && i.PromptRows != out.PromptRows {
			return out, rpcerr.InvalidArgument("device", "stage %d has another contract of prompts than others", k+1)
		}
	}
	if len(t.stages) == 1 {
		out.Stages = nil
	}
	out.Backend, out.Device = strings.Join(backends, "+"), strings.Join(devices, ", ")
	out.Numerics = numerics(t.stages)
	if t.rows == engine.HiddenBF16 {
		var before []string // layers that get rounded rows
		for _, e := range t.stages[1:] {
			before = append(before, strconv.Itoa(e.Info().LayerFirst))
		}
		out.Numerics += " rows=bf16@" + strings.Join(before, ",")
	}
	out.Concurrent, out.Depth = false, len(t.stages)
	t.gatherFeatures(&out)
	return out, nil
}

// numerics of all stages: those of one engine when all are the same, since then the bits are, too.
func numerics(stages []engine.Target) string {
	var runs []string
	last := ""
	from := 0
	end := func(to int) {
		if last != "" {
			runs = append(runs, fmt.Sprintf("%s [%d,%d)", last, from, to))
		}
	}
	for _, e := range stages {
		if i := e.Info(); i.Numerics != last {
			end(i.LayerFirst)
			last, from = i.Numerics, i.LayerFirst
		}
	}
	if len(runs) == 0 {
		return last
	}
	end(stages[len(stages)-1].Info().LayerLast)
	return strings.Join(runs, " + ")
}

// Info implements engine.Engine, as do the methods below.
func (t *Target) Info() engine.Info {
	t.infoMu.Lock()
	defer t.infoMu.Unlock()
	i := t.info
	i.CaptureLayers, i.Stages = slices.Clone(i.CaptureLayers), slices.Clone(i.Stages)
	return i
}

// Stats adds up the counters of the stages; what is free is what the stage with the least has.
func (t *Target) Stats(ctx context.Context) ([]engine.Stat, error) {
	return t.sum(func(e engine.Target) ([]engine.Stat, error) { return e.Stats(ctx) })
}

// Memory adds up the memory of the stages.
func (t *Target) Memory(ctx context.Context) ([]engine.Stat, error) {
	return t.sum(func(e engine.Target) ([]engine.Stat, error) { return e.Memory(ctx) })
}

func (t *Target) sum(of func(engine.Target) ([]engine.Stat, error)) ([]engine.Stat, error) {
	var out []engine.Stat
	for _, e := range t.stages {
		stats, err := of(e)
		if err != nil {
			return nil, err
		}
		for _, s := range stats {
			i := slices.IndexFunc(out, func(o engine.Stat) bool { return o.Name == s.Name })
			switch {
			case i < 0:
				out = append(out, s)
			case common[s.Name]:
				out[i].Value = min(out[i].Value, s.Value)
			default:
				out[i].Value += s.Value
			}
		}
	}
	return out, nil
}

// common are numbers that say the same of every stage, since all hold the same sequences and pages.
var common = map[string]bool{
	"kv_pages": true, "kv_pages_free": true, "kv_pages_shared": true, "sequences": true, "snapshots": true,
}

// Handles lists what exists.
func (t *Target) Handles(ctx context.Context) (engine.Handles, error) {
	if err := ctx.Err(); err != nil {
		return engine.Handles{}, rpcerr.From(err)
	}
	return t.handles.List(), nil
}

// Close closes all stages.
func (t *Target) Close() error {
	t.closeOnce.Do(func() {
		close(t.closing)
		t.watchers.Wait()
		t.closeErr = t.closeStages()
		t.lose(rpcerr.FailedPrecondition("the engine is closed"))
		t.mu.Lock()
		defer t.mu.Unlock()
		for t.borrowed > 0 {
			t.moved.Wait()
		}
		t.free = nil
		for k, b := range t.borders {
			b.Close()
			t.borders[k] = nil
		}
	})
	return t.closeErr
}

func (t *Target) closeStages() error {
	var errs []error
	for _, e := range t.stages {
		errs = append(errs, e.Close())
	}
	return errors.Join(errs...)
}

// lose ends the target with the first of its stages.
func (t *Target) lose(err error) {
	t.lostMu.Lock()
	defer t.lostMu.Unlock()
	if t.lost == nil {
		t.lost = err
		close(t.done)
	}
}

// Done implements engine.Mortal.
func (t *Target) Done() <-chan struct{} { return t.done }

// Err implements engine.Mortal.
func (t *Target) Err() error {
	t.lostMu.Lock()
	defer t.lostMu.Unlock()
	return t.lost
}

// Kill ends all stages at once, without their help.
func (t *Target) Kill(cause error) {
	for _, e := range t.stages {
		if k, ok := e.(interface{ Kill(error) }); ok {
			k.Kill(cause)
		}
	}
	t.lose(cause)
}

// Stderr returns the last lines of the stages' processes.
func (t *Target) Stderr() (lines []string) {
	for _, e := range t.stages {
		if p, ok := e.(interface{ Stderr() []string }); ok {
			lines = append(lines, p.Stderr()...)
		}
	}
	return lines
}

// give up a target whose stages do not hold the same any more.
func (t *Target) giveUp(what string, err error) error {
	err = rpcerr.EngineLost.With("the stages differ: %s", what).WithCause(err)
	t.Kill(err)
	return err
}
