package workernode

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// counting is a worker that has counted something.
type counting struct{}

func (counting) Register(*grpc.Server)     {}
func (counting) Run(context.Context) error { return nil }
func (counting) Ready() bool               { return true }
func (counting) Drain()                    {}
func (counting) Lease(*tandemv1.Lease)     {}
func (counting) Heartbeat(h *tandemv1.Heartbeat) {
	h.EngineRestarts, h.EngineSequences, h.OrphanedSequences = 4, 3, 1
	h.LanesBusy, h.Counters = 2, map[string]float64{"requests": 7, "unheard_of": 1}
	for name := range registry.Gauges {
		h.Counters[name] = 3
	}
}

func (counting) Measure(context.Context) EngineState {
	return EngineState{
		Holds: map[string]uint64{"kv_bytes": 4096, "total_bytes": 5000, "cap_bytes": 9000, "kv_pages": 10,
			"kv_pages_free": 4, "kv_pages_shared": 1, "sequences": 2},
		Did: map[string]uint64{"step_ns": 1.5e9, "steps": 7, "weight_bytes_read": 8, "made_up_bytes_read": 9,
			"unheard_of_ns": 1, "graph_runs": 5, "graph_captures": 2, "list_runs": 1},
	}
}

// get returns a page of a port of the node.
func get(t *testing.T, n *node, i int, path string) string {
	t.Helper()
	response, err := http.Get("http://" + n.pages[i].listener.Addr().String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatal(response.Status, err)
	}
	return string(body)
}

// TestPages: a worker serves its counters under the names of the gateway's, well formed, and lets its log level be
// changed.
func TestPages(t *testing.T) {
	m, err := telemetry.NewPrometheus("tandem-worker-test", "v")
	if err != nil {
		t.Fatal(err)
	}
	level := zap.NewAtomicLevel()
	n := &node{worker: counting{}, log: zap.NewNop(), cfg: Config{Flags: &Flags{
		MetricsListen: ":0", AdminListen: "127.0.0.1:0", metrics: m, level: &level}}}
	n.complete.Store(true)
	if err := n.openPages(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, len(n.pages))
	for _, p := range n.pages {
		go func() { ended <- telemetry.Serve(ctx, p.listener, p.handler) }()
	}
	defer func() {
		cancel()
		http.DefaultClient.CloseIdleConnections()
		for range n.pages {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}()
	if a := n.pages[0].listener.Addr().String(); !strings.HasPrefix(a, "127.0.0.1:") {
		t.Errorf("a port without a host is open at %s", a)
	}
	page := get(t, n, 0, "/metrics")
	for _, want := range []string{"tandem_worker_requests_total 7\n", "tandem_prefix_cache_entries 3\n",
		"tandem_worker_up 1\n", "tandem_lanes_busy 2\n", `tandem_engine_memory_bytes{kind="kv"} 4096` + "\n",
		"tandem_engine_memory_used_bytes 5000\n", "tandem_engine_memory_limit_bytes 9000\n",
		`tandem_engine_pages{state="used"} 6` + "\n", `tandem_engine_pages{state="free"} 4` + "\n",
		"tandem_engine_pages_shared 1\n", `tandem_engine_time_seconds_total{kind="step"} 1.5` + "\n",
		`tandem_engine_work_total{kind="step"} 7` + "\n", `tandem_engine_read_bytes_total{kind="weight"} 8` + "\n",
		`tandem_engine_submissions_total{kind="graph"} 3` + "\n",
		`tandem_engine_submissions_total{kind="captured"} 2` + "\n", "tandem_worker_restarts_total 4\n",
		`tandem_engine_sequences{owner="none"} 1` + "\n",
		`tandem_build_info{goversion=`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(page, "unheard_of") || strings.Contains(page, "made_up") || strings.Contains(page, `"total"`) {
		t.Error("a counter without a description is shown")
	}
	problems, err := promlint.New(strings.NewReader(page)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut,
		"http://"+n.pages[1].listener.Addr().String()+"/log/level", strings.NewReader(`{"level":"debug"}`))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if level.Level() != zap.DebugLevel {
		t.Errorf("the level is %v after a change to debug", level.Level())
	}
	if !strings.Contains(get(t, n, 1, "/debug/pprof/"), "goroutine") {
		t.Error("there are no profiles")
	}
}
