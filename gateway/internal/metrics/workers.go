package metrics

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/services/registry"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Bounds of what is remembered of workers that are gone.
const (
	keepDead = 24 * time.Hour // longer than any alert waits
	maxDead  = 256            // workers; a crash loop with a new name at each start must not fill the memory
)

// dead remembers workers that went without saying so, so that tandem_worker_up falls to 0 and stays there instead
// of vanishing.
type dead struct {
	now func() time.Time

	mu   sync.Mutex // guards seen
	seen map[string]presence
}

// presence is what is known of a worker.
type presence struct {
	role, backend string
	last          time.Time // when it was last in the registry's list
}

// update takes the registry's list and returns the workers that are missing there.
func (d *dead) update(workers []registry.Worker) map[string]presence {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	missing := maps.Clone(d.seen)
	for _, w := range workers {
		delete(missing, w.ID)
		if w.State == registry.StateDraining || w.Drained {
			delete(d.seen, w.ID) // it is going, or went, on purpose
			continue
		}
		d.seen[w.ID] = presence{registry.RoleName(w.Registration.GetRole()), w.Registration.GetBackend(), now}
	}
	for id, p := range missing {
		if now.Sub(p.last) > keepDead {
			delete(missing, id)
			delete(d.seen, id)
		}
	}
	// Of too many the ones that are gone for longest are forgotten.
	oldest := slices.SortedFunc(maps.Keys(missing), func(a, b string) int {
		return cmp.Or(missing[a].last.Compare(missing[b].last), cmp.Compare(a, b))
	})
	for _, id := range oldest[:max(0, len(oldest)-maxDead)] {
		delete(missing, id)
		delete(d.seen, id)
	}
	return missing
}

// workerInstruments are read at collection time.
type workerInstruments struct {
	up, draining, slots, tokens, sequences metric.Int64ObservableGauge
	restarts                               metric.Int64ObservableCounter
	counters                               map[string]metric.Float64ObservableCounter
	gauges                                 map[string]metric.Float64ObservableGauge
}

func (b *builder) workers() workerInstruments {
	w := workerInstruments{
		slots: b.gauge("tandem.lanes", "Slots by worker and state."),
		tokens: b.gauge("tandem.kv_tokens",
			"Tokens of context by worker and state, used ones are reserved for running requests."),
		sequences: b.gauge("tandem.engine.sequences",
			"Sequences in the engine, by worker; those of owner none belong to no request."),
		up: b.gauge("tandem.worker.up",
			"1 for a worker that is ready, 0 for one that is not or that is gone without having been told to, for a day."),
		draining: b.gauge("tandem.worker.draining", "1 for a worker that takes no new work because it was told so."),
		counters: map[string]metric.Float64ObservableCounter{},
		gauges:   map[string]metric.Float64ObservableGauge{},
	}
	var err error
	if w.restarts, err = b.m.Int64ObservableCounter("tandem.worker.restarts",
		metric.WithDescription("Restarts of engine processes.")); err != nil {
		b.err = err
	}
	for name, help := range registry.Counters {
		if w.counters[name], err = b.m.Float64ObservableCounter(registry.MetricName(name),
			metric.WithDescription(help)); err != nil {
			b.err = err
		}
	}
	for name, help := range registry.Gauges {
		if w.gauges[name], err = b.m.Float64ObservableGauge(registry.MetricName(name),
			metric.WithDescription(help)); err != nil {
			b.err = err
		}
	}
	return w
}

func (w *workerInstruments) all() []metric.Observable {
	out := []metric.Observable{w.up, w.draining, w.slots, w.tokens, w.sequences, w.restarts}
	for _, c := range w.counters {
		out = append(out, c)
	}
	for _, g := range w.gauges {
		out = append(out, g)
	}
	return out
}

// observe reports the state of all workers.
func (w *workerInstruments) observe(_ context.Context, o metric.Observer, src *Sources, gone *dead) {
	list := src.Workers()
	for id, p := range gone.update(list) {
		o.ObserveInt64(w.up, 0, metric.WithAttributes(attribute.String("worker", id), attribute.String("role", p.role),
			attribute.String("backend", p.backend)))
	}
	for _, worker := range list {
		reg := worker.Registration
		id, role := attribute.String("worker", worker.ID), attribute.String("role", registry.RoleName(reg.GetRole()))
		ready := int64(0)
		if worker.State == registry.StateReady {
			ready = 1
		}
		o.ObserveInt64(w.up, ready, metric.WithAttributes(id, role, attribute.String("backend", reg.GetBackend())))
		draining := int64(0)
		if worker.State == registry.StateDraining {
			draining = 1
		}
		o.ObserveInt64(w.draining, draining, metric.WithAttributes(id, role))
		if hb := worker.Heartbeat; hb != nil {
			o.ObserveInt64(w.restarts, int64(hb.GetEngineRestarts()), metric.WithAttributes(id, role))
			orphans := int64(hb.GetOrphanedSequences())
			o.ObserveInt64(w.sequences, int64(hb.GetEngineSequences())-orphans,
				metric.WithAttributes(id, role, attribute.String("owner", "request")))
			o.ObserveInt64(w.sequences, orphans, metric.WithAttributes(id, role, attribute.String("owner", "none")))
			for name, v := range hb.GetCounters() {
				if v < 0 || math.IsInf(v, 0) {
					continue
				}
				if c := w.counters[name]; c != nil {
					o.ObserveFloat64(c, v, metric.WithAttributes(id, role))
				}
				if g := w.gauges[name]; g != nil {
					o.ObserveFloat64(g, v, metric.WithAttributes(id, role))
				}
			}
		}
		states := func(g metric.Int64ObservableGauge, first, second string, of func(string) (int, int, bool)) {
			if of == nil {
				return
			}
			if n, total, ok := of(worker.ID); ok {
				o.ObserveInt64(g, int64(n), metric.WithAttributes(id, attribute.String("state", first)))
				o.ObserveInt64(g, int64(total-n), metric.WithAttributes(id, attribute.String("state", second)))
			}
		}
		states(w.tokens, "used", "free", src.Tokens)
		states(w.slots, "busy", "free", src.Busy)
	}
}
