package workernode

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/host"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
)

// KeeperConfig sets up a Keeper.
type KeeperConfig[E engine.Engine] struct {
	Open    engine.Open[E]
	Options engine.OpenOptions
	// OnOpen prepares an engine before anybody gets it. May be nil.
	OnOpen func(context.Context, E) error
	// Guard of every engine; OnOrphans is the keeper's.
	Guard engine.GuardConfig
	Log   *zap.Logger
	// Flags are those of the program, for advice when a model does not fit; nil = none.
	Flags *Flags
	// Trained is the context that the model was trained for, in tokens; 0 = not known.
	Trained int
	// Lazy has the engine opened by its first user, not by Run. Known is what is certain of it before, nil = nothing.
	Lazy  bool
	Known *engine.Info
	// ParkAfter closes an engine that nobody has used for so long, until it is used again; 0 = never. Users are those
	// between Use and the call of what it returned.
	ParkAfter time.Duration
}

// Keeper is a worker's view of its supervised engine: prepared before use, replaced after death or device fault.
type Keeper[E engine.Engine] struct {
	log        *zap.Logger
	flags      *Flags
	trained    int
	supervisor *host.Supervisor[E]
	openings   atomic.Int64
	restarts   atomic.Int64
	down       bool // the engine was lost; of the goroutine of Run
	parking    parking
	// Bytes of weights while an engine loads.
	loaded, total atomic.Uint64

	totalsMu sync.Mutex // guards totals
	totals   engine.Totals
}

// prepared guards engines and runs OnOpen between opening and use.
func prepared[E engine.Engine](cfg KeeperConfig[E], guard func(E, engine.GuardConfig) E) engine.Open[E] {
	// What the first engine chose by memory its successors keep, whatever is free then: the contract stays the same.
	typeK, typeV := engine.KVAuto, engine.KVAuto
	return func(ctx context.Context, o engine.OpenOptions, progress engine.Progress) (E, error) {
		var none E
		if o.KVTypeK == engine.KVAuto {
			o.KVTypeK = typeK
		}
		if o.KVTypeV == engine.KVAuto {
			o.KVTypeV = typeV
		}
		inner, err := cfg.Open(ctx, o, progress)
		if err != nil {
			return none, err
		}
		typeK, typeV = inner.Info().KVTypeK, inner.Info().KVTypeV
		e := guard(inner, cfg.Guard)
		if cfg.OnOpen == nil {
			return e, nil
		}
		if err := cfg.OnOpen(ctx, e); err != nil {
			_ = e.Close()
			return none, err
		}
		return e, nil
	}
}

// NewTargetKeeper returns the keeper of a target; Run opens the engine.
func NewTargetKeeper(cfg KeeperConfig[engine.Target]) *Keeper[engine.Target] {
	return newKeeper(cfg, func(e engine.Target, c engine.GuardConfig) engine.Target { return engine.GuardTarget(e, c) })
}

// NewDraftKeeper returns the keeper of a draft; Run opens the engine.
func NewDraftKeeper(cfg KeeperConfig[engine.Draft]) *Keeper[engine.Draft] {
	return newKeeper(cfg, func(e engine.Draft, c engine.GuardConfig) engine.Draft { return engine.GuardDraft(e, c) })
}

// NewScorerKeeper returns the keeper of a scorer; Run opens the engine.
func NewScorerKeeper(cfg KeeperConfig[engine.Scorer]) *Keeper[engine.Scorer] {
	return newKeeper(cfg, func(e engine.Scorer, c engine.GuardConfig) engine.Scorer { return engine.GuardScorer(e, c) })
}

func newKeeper[E engine.Engine](cfg KeeperConfig[E], guard func(E, engine.GuardConfig) E) *Keeper[E] {
	k := &Keeper[E]{log: cfg.Log, flags: cfg.Flags, trained: cfg.Trained}
	k.parking.after, k.parking.asleep = cfg.ParkAfter, cfg.Lazy
	if cfg.Known != nil {
		k.parking.known, k.parking.info = true, *cfg.Known
	}
	if k.log == nil {
		k.log = zap.NewNop()
	}
	cfg.Guard.OnOrphans = k.orphans
	k.supervisor = host.NewSupervisor(prepared(cfg, guard), cfg.Options,
		host.RestartConfig{OnEvent: k.event, Parked: cfg.Lazy, Progress: func(done, total uint64) {
			k.loaded.Store(done)
			k.total.Store(total)
		}})
	return k
}

func (k *Keeper[E]) event(e host.Event) {
	switch e.Kind {
	case host.EngineUp:
		k.openings.Add(1)
		if k.down {
			k.down = false
			k.restarts.Add(1)
		}
		fields := []zap.Field{zap.Uint64("generation", e.Generation)}
		if current, running := k.supervisor.Current(); running {
			info := current.Info()
			k.parking.opened(info)
			fields = append(fields, zap.Int("max_ctx", info.MaxContext), zap.Int("slots", info.MaxSequences),
				zap.Int("kv_positions", info.KVPositions))
		}
		k.log.Info("engine is open", fields...)
		k.warnOfLongContext()
	case host.EngineParked:
		k.log.Info("engine is closed until it is needed: nobody has used it", zap.Duration("for", k.parking.after))
	case host.EngineDown:
		k.down = true
		k.parking.lost()
		k.log.Error("engine is lost, opening it again", zap.NamedError(telemetry.KeyErr, e.Err),
			zap.Strings("stderr", e.Stderr))
	case host.EngineFailed:
		k.parking.lost()
		if len(e.Stderr) == 0 {
			return // Run returns the error to somebody who says it
		}
		k.log.Error("engine cannot be kept open", zap.NamedError(telemetry.KeyErr, e.Err), zap.Strings("stderr", e.Stderr))
	}
}

// orphans says loudly what should never happen; the guard frees them.
func (k *Keeper[E]) orphans(h engine.Handles) {
	k.log.Error("the engine holds sequences or snapshots that belong to no request, freeing them",
		zap.Int32s("sequences", toInt32(h.Sequences)), zap.Int32s("snapshots", toInt32(h.Snapshots)))
}

func toInt32[H ~int32](list []H) []int32 {
	out := make([]int32, len(list))
	for i, h := range list {
		out[i] = int32(h)
	}
	return out
}

// Heartbeat fills in what the keeper knows of its engine.
func (k *Keeper[E]) Heartbeat(h *tandemv1.Heartbeat) {
	h.EngineRestarts = int32(k.Restarts())
	h.LoadedBytes, h.LoadBytes = k.Loading()
	if h.Counters == nil {
		h.Counters = map[string]float64{}
	}
	parks, parked := k.parks()
	h.Counters["engine_parks"], h.Counters["engine_parked"] = float64(parks), 0
	if parked {
		h.Counters["engine_parked"] = 1
	}
	e, running := k.supervisor.Current()
	if running {
		noteMemory(h, e)
	}
	g, ok := any(e).(interface{ Counts() engine.HandleCounts })
	if !ok { // there is none, or none with sequences
		return
	}
	c := g.Counts()
	h.EngineSequences, h.OrphanedSequences = int32(c.Sequences), int32(c.Orphans)
	h.Counters["orphaned_sequences_freed"] = float64(c.Freed)
}

// noteMemory adds what the engine has of its device's memory to a heartbeat; nothing when it does not answer in time.
func noteMemory(h *tandemv1.Heartbeat, e engine.Engine) {
	ctx, cancel := context.WithTimeout(context.Background(), statsTimeout)
	defer cancel()
	memory, err := e.Memory(ctx)
	if err != nil {
		return
	}
	used, total := uint64(0), uint64(0)
	for _, m := range memory {
		switch kind, bytes := strings.CutSuffix(m.Name, "_bytes"); {
		case kind == "cap":
			h.Counters["device_memory_limit_bytes"] = float64(m.Value)
		case kind == "total":
			total = m.Value
		case bytes:
			used += m.Value
		}
	}
	// Engines of drafts and scorers give no total.
	if used = cmp.Or(total, used); used > 0 {
		h.Counters["device_memory_bytes"] = float64(used)
	}
}

// Run keeps the engine open until ctx ends. The error of an engine that does not fit names the flags to turn.
func (k *Keeper[E]) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var idle sync.WaitGroup
	idle.Go(func() { k.parking.run(ctx, k.supervisor.Park) })
	err := k.supervisor.Run(ctx)
	cancel()
	idle.Wait()
	if err == nil {
		return nil
	}
	never, last := k.openings.Load() == 0, lasting(err)
	if k.flags != nil {
		err = k.flags.advise(err, k.trained)
	}
	if never && last {
		return unopened{err}
	}
	return err
}

// warnOfLongContext tells once that requests may be longer than any text that the model was trained on.
func (k *Keeper[E]) warnOfLongContext() {
	e, running := k.supervisor.Current()
	if !running || k.trained == 0 || e.Info().MaxContext <= k.trained || k.openings.Load() > 1 {
		return
	}
	k.log.Warn("the context is longer than the model was trained for; answers may get worse beyond that",
		zap.Int("max_ctx", e.Info().MaxContext), zap.Int("trained", k.trained))
}

// Wait returns the engine as soon as it is open.
func (k *Keeper[E]) Wait(ctx context.Context) (E, error) {
	e, _, err := k.supervisor.Engine(ctx)
	return e, err
}

// Next waits for an engine that was opened after the generation `after`, 0 = any, and returns it with its own.
func (k *Keeper[E]) Next(ctx context.Context, after uint64) (E, uint64, error) {
	return k.supervisor.Next(ctx, after)
}

// Engine returns the open engine, or UNAVAILABLE while there is none. A caller keeps what it got for as long as its
// sequences live: they do not exist in the next one.
func (k *Keeper[E]) Engine() (E, error) {
	e, running := k.supervisor.Current()
	if !running && k.parking.sleeping() {
		return e, parkedError()
	}
	if !running {
		return e, rpcerr.EngineLost.With("the engine is restarting").WithRetryAfter(time.Second)
	}
	return e, nil
}

// Loading tells how much of the weights an engine that is being opened has: bytes done of bytes in all, 0 of 0 when
// none loads.
func (k *Keeper[E]) Loading() (done, total uint64) {
	if _, running := k.supervisor.Current(); running {
		return 0, 0
	}
	return k.loaded.Load(), k.total.Load()
}

// Restarts counts how often the engine was opened again, but for those times when it had been parked.
func (k *Keeper[E]) Restarts() int { return int(k.restarts.Load()) }

// parks returns how often the engine was parked, and whether it is, or was not needed yet.
func (k *Keeper[E]) parks() (n int, parked bool) {
	k.parking.mu.Lock()
	defer k.parking.mu.Unlock()
	return k.parking.parks, k.parking.asleep
}

// Report tells the keeper the error of a call on engine. After a device fault an engine answers nothing else any more:
// it is closed, and the supervisor opens another.
func (k *Keeper[E]) Report(engine engine.Engine, err error) {
	if rpcerr.Code(err) != codes.Internal {
		return
	}
	k.log.Error("engine failed", zap.NamedError(telemetry.KeyErr, err))
	_ = engine.Close()
}
