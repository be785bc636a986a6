package server

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
)

// statEngine is an engine that only counts.
type statEngine struct {
	engine.Target
	runs uint64
}

func (e *statEngine) Stats(context.Context) ([]engine.Stat, error) {
	return []engine.Stat{{Name: "steps", Value: 9}, {Name: "graph_runs", Value: e.runs},
		{Name: "list_runs", Value: 1}}, nil
}

// oneEngine yields an engine, or nothing.
type oneEngine struct{ engine engine.Target }

func (o *oneEngine) Engine() (engine.Target, error) {
	if o.engine == nil {
		return nil, errors.New("restarting")
	}
	return o.engine, nil
}

func (o *oneEngine) Use(context.Context) (engine.Target, func(), error) {
	e, err := o.Engine()
	return e, func() {}, err
}

func (o *oneEngine) Report(engine.Engine, error) {}

// TestEngineCounters: heartbeats carry what the engine counts, over restarts of the engine.
func TestEngineCounters(t *testing.T) {
	first, second, engines := &statEngine{runs: 5}, &statEngine{runs: 2}, &oneEngine{}
	s := New("target", decode.Config{}, Deps{Engines: engines})
	beat := func() map[string]float64 {
		var h tandemv1.Heartbeat
		s.Heartbeat(&h)
		maps.DeleteFunc(h.Counters, func(name string, _ float64) bool { return !slices.Contains(counted, name) })
		for name := range h.Counters {
			if registry.Counters[name] == "" {
				t.Errorf("%s is not known to the registry: no metric has it", name)
			}
		}
		return h.Counters
	}
	if got := beat(); len(got) != 0 {
		t.Errorf("without an engine: %v", got)
	}
	engines.engine = first
	beat()
	first.runs = 7
	if got := beat(); got["graph_runs"] != 7 || got["list_runs"] != 1 || len(got) != 2 {
		t.Errorf("of one engine: %v", got)
	}
	engines.engine = nil
	if got := beat(); got["graph_runs"] != 7 {
		t.Errorf("while it restarts: %v", got)
	}
	engines.engine = second
	if got := beat(); got["graph_runs"] != 7+2 || got["list_runs"] != 1+1 {
		t.Errorf("of the next engine: %v", got)
	}
}
