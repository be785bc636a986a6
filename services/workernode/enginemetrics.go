package workernode

import (
	"context"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Measured is a worker whose engine says what it holds and what it did.
type Measured interface {
	Measure(ctx context.Context) EngineState
}

// EngineState is what an engine holds, by name, and what it and those before it did; both empty while no engine was
// open. Names are those of tnd_memory and tnd_stats.
type EngineState struct {
	Holds map[string]uint64
	Did   map[string]uint64
}

// engineTimes are the counters of engines in nanoseconds, by the label that they get: only these become series.
var engineTimes = map[string]string{
	"step_ns": "step", "embed_ns": "embed", "norm_ns": "norm", "matmul_ns": "matmul", "delta_ns": "delta",
	"attention_ns": "attention", "swiglu_ns": "swiglu", "head_ns": "head", "feature_ns": "feature", "commit_ns": "commit",
	"draft_ns": "draft", "score_ns": "score",
}

// engineWork are their counters of things.
var engineWork = map[string]string{
	"steps": "step", "rows": "row", "commits": "commit", "committed_rows": "committed_row", "head_rows": "head_row",
	"draft_appends": "draft_append", "draft_proposals": "draft_proposal", "score_calls": "score",
}

// statsTimeout bounds the wait for an engine that does not answer.
const statsTimeout = time.Second

// Measure reads what the engine holds and adds what it counted since the last time.
func (k *Keeper[E]) Measure(ctx context.Context) EngineState {
	s := EngineState{Holds: map[string]uint64{}}
	e, running := k.supervisor.Current()
	var stats []engine.Stat
	if running {
		ctx, cancel := context.WithTimeout(ctx, statsTimeout)
		defer cancel()
		if memory, err := e.Memory(ctx); err == nil {
			for _, m := range memory {
				s.Holds[m.Name] = m.Value
			}
		}
		stats, _ = e.Stats(ctx)
	}
	k.totalsMu.Lock()
	defer k.totalsMu.Unlock()
	if stats != nil {
		k.totals.Add(e, stats)
	}
	s.Did = k.totals.All()
	return s
}

// engineInstruments are read at collection time.
type engineInstruments struct {
	memory, used, limit   metric.Int64ObservableGauge
	pages, shared         metric.Int64ObservableGauge
	handles               metric.Int64ObservableGauge
	time                  metric.Float64ObservableCounter
	work, read, submitted metric.Int64ObservableCounter
}

func newEngineInstruments(m metric.Meter) (*engineInstruments, error) {
	i := &engineInstruments{}
	for _, g := range []struct {
		at               *metric.Int64ObservableGauge
		name, unit, help string
	}{
		{&i.memory, "tandem.engine.memory", "By", "Memory that the engine has planned, by what it holds."},
		{&i.used, "tandem.engine.memory.used", "By", "Memory of the device that counts towards the engine's limit."},
		{&i.limit, "tandem.engine.memory.limit", "By", "Memory of the device that the engine may use (--memory-cap)."},
		{&i.pages, "tandem.engine.pages", "", "Pages of keys and values, by state."},
		{&i.shared, "tandem.engine.pages.shared", "", "Pages that several sequences or states share."},
		{&i.handles, "tandem.engine.sequences", "", "Sequences in the engine; those of owner none belong to no request."},
	} {
		var err error
		if *g.at, err = m.Int64ObservableGauge(g.name, metric.WithUnit(g.unit), metric.WithDescription(g.help)); err != nil {
			return nil, err
		}
	}
	for _, c := range []struct {
		at               *metric.Int64ObservableCounter
		name, unit, help string
	}{
		{&i.work, "tandem.engine.work", "", "What the engine did, by kind: steps, their rows, proposals, prompts scored."},
		{&i.read, "tandem.engine.read", "By", "Memory that steps read, by what it held."},
		{&i.submitted, "tandem.engine.submissions", "", "Submissions to a GPU: graphs that were run again or captured " +
			"first, and launches one by one."},
	} {
		var err error
		*c.at, err = m.Int64ObservableCounter(c.name, metric.WithUnit(c.unit), metric.WithDescription(c.help))
		if err != nil {
			return nil, err
		}
	}
	var err error
	i.time, err = m.Float64ObservableCounter("tandem.engine.time", metric.WithUnit("s"),
		metric.WithDescription("Time of the engine by kind; step is all of a step, the others are parts of it where they "+
			"are measured."))
	return i, err
}

func (i *engineInstruments) all() []metric.Observable {
	return []metric.Observable{i.memory, i.used, i.limit, i.pages, i.shared, i.handles, i.time, i.work, i.read,
		i.submitted}
}

// observe reports a state. What an engine does not count has no series.
func (i *engineInstruments) observe(o metric.Observer, s EngineState) {
	labeled := func(key, value string) metric.MeasurementOption {
		return metric.WithAttributes(attribute.String(key, value))
	}
	for name, value := range s.Holds {
		kind, bytes := strings.CutSuffix(name, "_bytes")
		switch {
		case !bytes:
		case kind == "total":
			o.ObserveInt64(i.used, int64(value))
		case kind == "cap":
			o.ObserveInt64(i.limit, int64(value))
		default:
			o.ObserveInt64(i.memory, int64(value), labeled("kind", kind))
		}
	}
	if pages, known := s.Holds["kv_pages"]; known {
		free := min(s.Holds["kv_pages_free"], pages)
		o.ObserveInt64(i.pages, int64(pages-free), labeled("state", "used"))
		o.ObserveInt64(i.pages, int64(free), labeled("state", "free"))
		o.ObserveInt64(i.shared, int64(s.Holds["kv_pages_shared"]))
	}
	for name, value := range s.Did {
		if kind := engineTimes[name]; kind != "" {
			o.ObserveFloat64(i.time, time.Duration(value).Seconds(), labeled("kind", kind))
		}
		if kind := engineWork[name]; kind != "" {
			o.ObserveInt64(i.work, int64(value), labeled("kind", kind))
		}
		if kind, ok := strings.CutSuffix(name, "_bytes_read"); ok && (kind == "weight" || kind == "kv") {
			o.ObserveInt64(i.read, int64(value), labeled("kind", kind))
		}
	}
	if runs, known := s.Did["graph_runs"]; known {
		captured := min(s.Did["graph_captures"], runs)
		o.ObserveInt64(i.submitted, int64(runs-captured), labeled("kind", "graph"))
		o.ObserveInt64(i.submitted, int64(captured), labeled("kind", "captured"))
		o.ObserveInt64(i.submitted, int64(s.Did["list_runs"]), labeled("kind", "launches"))
	}
}
