package metrics

import (
	"fmt"
	"maps"
	"net/http/httptest"
	"regexp"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/telemetry"
)

func worker(id, state string, drained bool) registry.Worker {
	return registry.Worker{ID: id, State: state, Drained: drained,
		Registration: &tandemv1.Registration{Role: tandemv1.Role_ROLE_DRAFT, Backend: "cpu"}}
}

// TestDead: what went without a word is missing for a day, what said it would go is not, and what is back is
// not either.
func TestDead(t *testing.T) {
	now := time.Unix(1e9, 0)
	d := &dead{now: func() time.Time { return now }, seen: map[string]presence{}}
	check := func(when string, list []registry.Worker, want ...string) {
		t.Helper()
		got := d.update(list)
		if len(got) != len(want) {
			t.Errorf("%s: missing %v, want %v", when, got, want)
		}
		for _, id := range want {
			if p, ok := got[id]; !ok || p.role != "draft" || p.backend != "cpu" {
				t.Errorf("%s: %s is %+v, missing %v", when, id, p, ok)
			}
		}
	}
	check("all there", []registry.Worker{worker("a", registry.StateReady, false), worker("b", registry.StateReady, false),
		worker("c", registry.StateReady, false)})
	check("lost, but listed", []registry.Worker{worker("a", registry.StateLost, false),
		worker("b", registry.StateLost, true), worker("c", registry.StateDraining, false)})
	now = now.Add(time.Hour)
	check("forgotten by the registry", nil, "a")
	now = now.Add(time.Hour)
	check("back", []registry.Worker{worker("a", registry.StateReady, false)})
	now = now.Add(keepDead)
	check("gone for a day", nil, "a") // not longer
	now = now.Add(time.Second)
	check("gone for longer", nil)
	for i := range maxDead + 10 {
		d.update([]registry.Worker{worker(fmt.Sprintf("crash-%04d", i), registry.StateLost, false)})
		now = now.Add(time.Second)
	}
	got := d.update(nil)
	if _, ok := got["crash-0009"]; len(got) != maxDead || ok || len(d.seen) != maxDead {
		t.Errorf("%d workers are remembered, the oldest %v", len(got), ok)
	}
}

// TestDeadWorkerIsDown: the series of a worker that died is 0 as long as an alert may need, also when the registry has
// forgotten the worker. One that left on purpose has none.
func TestDeadWorkerIsDown(t *testing.T) {
	provider, err := telemetry.NewPrometheus("test", "v")
	if err != nil {
		t.Fatal(err)
	}
	defer provider.Shutdown(t.Context())
	var list []registry.Worker
	if _, err := New(provider.MeterProvider(), Sources{Workers: func() []registry.Worker { return list }}); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		when string
		list []registry.Worker
		want map[string]string
	}{
		{"both are ready", []registry.Worker{worker("died", registry.StateReady, false),
			worker("left", registry.StateReady, false)}, map[string]string{"died": "1", "left": "1"}},
		{"both are lost", []registry.Worker{worker("died", registry.StateLost, false),
			worker("left", registry.StateLost, true)}, map[string]string{"died": "0", "left": "0"}},
		{"the registry has forgotten them", nil, map[string]string{"died": "0"}},
		{"the dead one is back", []registry.Worker{worker("died", registry.StateReady, false)},
			map[string]string{"died": "1"}},
	} {
		list = step.list
		w := httptest.NewRecorder()
		provider.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		got := map[string]string{}
		for _, m := range upLine.FindAllStringSubmatch(w.Body.String(), -1) {
			got[m[1]] = m[2]
		}
		if !maps.Equal(got, step.want) {
			t.Errorf("%s: tandem_worker_up is %v, want %v", step.when, got, step.want)
		}
	}
}

var upLine = regexp.MustCompile(`(?m)^tandem_worker_up\{backend="cpu",role="draft",worker="(\w+)"\} (\d+)$`)
