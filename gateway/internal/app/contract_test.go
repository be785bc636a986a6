package app

import (
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestFailoverKeepsContract loses a worker amid an answer in pools of workers whose arithmetic is alike, unlike, or claimed to be
// alike until the request is admitted.
func TestFailoverKeepsContract(t *testing.T) {
	const text = "one two three four five six seven eight"
	gone := status.Error(codes.Unavailable, "engine is gone")
	tests := []struct {
		name     string
		second   string // registered contract of b
		admits   string // what b states when it admits a request
		any      bool
		token    int // the first worker to run fails before this token
		moved    bool
		contract string
		changes  float64
	}{
		{"alike", "cpu", "cpu", false, 5, true, "cpu", 0},
		{"alike, others allowed", "cpu", "cpu", true, 5, true, "cpu", 0},
		{"unlike", "gpu", "gpu", false, 5, false, "", 0},
		{"unlike, allowed", "gpu", "gpu", true, 5, true, "gpu", 1},
		{"unlike, nothing generated yet", "gpu", "gpu", false, 0, true, "gpu", 0},
		{"states another one than it registered", "cpu", "gpu", false, 5, false, "", 0},
		{"states another one than it registered, allowed", "cpu", "gpu", true, 5, true, "gpu", 1},
		{"states none", "", "", false, 5, false, "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, func(c *Config) {
				c.FailoverTimeoutS, c.FailoverAny = 5, tt.any
				if !tt.moved {
					c.FailoverTimeoutS = 0.5 // over before the failed worker is asked again
				}
			})
			// The first worker asked is the one that fails, and it has the id "cpu" (the lowest worker id comes first).
			script := dieAt(r, text, tt.token, 1, gone)
			a := r.target(gatewaytest.WorkerOptions{ID: "a", Lanes: 1, Contract: "cpu", Decode: script})
			b := r.target(gatewaytest.WorkerOptions{ID: "b", Lanes: 1, Contract: tt.second, Decode: r.reply(text, 1)})
			b.SetContract(tt.admits)
			got := r.post("/v1/chat/completions", chatBody(`"seed":3`))
			if len(a.Requests()) == 0 {
				t.Fatal("the first worker was not asked")
			}
			metrics := string(r.do("GET", "/metrics", "").body)
			if !tt.moved {
				if e := got.json(t); got.status != 500 || at(e, "error", "code") != "worker_failed" {
					t.Errorf("status %d: %s", got.status, got.body)
				}
				for _, q := range b.Requests() {
					if tt.second != "cpu" && len(q.GetCommittedTokens()) > 0 {
						t.Errorf("asked to go on after %d tokens", len(q.GetCommittedTokens()))
					}
				}
				if strings.Contains(metrics, "tandem_contract_changes_total 1") {
					t.Error("a move was counted")
				}
				return
			}
			if got.status != 200 {
				t.Fatalf("status %d: %s", got.status, got.body)
			}
			if c := wholeChat(t, got); c[0].Content != text {
				t.Errorf("content %q, want %q", c[0].Content, text)
			}
			body := got.json(t)
			if id := at(body, "usage", "contract"); id != tt.contract {
				t.Errorf("usage.contract is %v, want %q", id, tt.contract)
			}
			changes, _ := at(body, "usage", "contract_changes").(float64)
			if changes != tt.changes {
				t.Errorf("usage.contract_changes is %v, want %v", changes, tt.changes)
			}
			if warned := strings.Contains(strings.Join(got.header.Values("x-tandem-warning"), ","), "contract-changed"); warned != (tt.changes > 0) {
				t.Errorf("warnings %v", got.header.Values("x-tandem-warning"))
			}
			if counted := strings.Contains(metrics, "tandem_contract_changes_total 1"); counted != (tt.changes > 0) {
				t.Errorf("counted: %v, changes %v", counted, tt.changes)
			}
		})
	}
}

// TestUnlikeTargetsServe: targets of one model with unlike contract ids all get new requests, and /cluster shows the ids.
func TestUnlikeTargetsServe(t *testing.T) {
	r := start(t, nil)
	a := r.target(gatewaytest.WorkerOptions{ID: "a", Lanes: 1, Contract: "cpu", Decode: r.reply("one", 1)})
	block := newBlock()
	a.SetDecode(block.script(r, "one two"))
	b := r.target(gatewaytest.WorkerOptions{ID: "b", Lanes: 1, Contract: "gpu", Decode: r.reply("three", 1)})
	first := r.send(t.Context(), chatBody(""))
	receive(t, block.admitted, "the first request runs")
	second := r.post("/v1/chat/completions", chatBody(""))
	close(block.release)
	if got := receive(t, first, "the first answer"); got.status != 200 || at(got.json(t), "usage", "contract") != "cpu" {
		t.Errorf("first: %d %s", got.status, got.body)
	}
	if second.status != 200 || at(second.json(t), "usage", "contract") != "gpu" || len(b.Requests()) != 1 {
		t.Errorf("second: %d %s", second.status, second.body)
	}
	for i, want := range []string{"cpu", "gpu"} {
		if got := at(r.do("GET", "/cluster", "").json(t), "workers", i, "contract"); got != want {
			t.Errorf("/cluster shows contract %v for worker %d, want %s", got, i, want)
		}
	}
}
