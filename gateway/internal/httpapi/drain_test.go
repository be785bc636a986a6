package httpapi_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/testwait"
)

// state is a worker's state in /cluster, and whether it is empty.
func state(r *rig.Rig, id string) (state string, empty bool) {
	var page struct {
		Workers []struct {
			ID, State string
			Empty     bool
		}
	}
	_ = json.Unmarshal(r.Do("GET", "/cluster", "").Body, &page)
	for _, w := range page.Workers {
		if w.ID == id {
			return w.State, w.Empty
		}
	}
	return "", false
}

// TestDrainUnderLoad drains one of two targets while clients ask all the time, and lets it work again: no request
// fails, all texts are the same, and the drained one gets none in between.
func TestDrainUnderLoad(t *testing.T) {
	const text = "one two three four five six seven eight"
	for _, move := range []bool{false, true} {
		t.Run(fmt.Sprintf("move %v", move), func(t *testing.T) {
			r := rig.Start(t, func(cfg *app.Config) { cfg.Route = "load" })
			var targets []*gatewaytest.Worker
			for _, id := range []string{"a", "b"} {
				targets = append(targets, r.Target(gatewaytest.WorkerOptions{ID: id, Slots: 2, Contract: "cpu",
					Decode: r.Reply(text, 1)}))
			}
			a := targets[0]
			stop := make(chan struct{})
			var clients sync.WaitGroup
			for range 4 {
				clients.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if got := r.Post("/v1/chat/completions", rig.ChatBody("")); got.Status != 200 ||
							!strings.Contains(string(got.Body), text) {
							t.Errorf("%d %s", got.Status, got.Body)
							return
						}
					}
				})
			}
			defer clients.Wait()
			defer close(stop)
			testwait.Until(t, "a has requests", func() bool { return len(a.Requests()) > 3 })
			if got := r.Post("/cluster/drain", fmt.Sprintf(`{"worker":"a","move":%v}`, move)); got.Status != 200 {
				t.Fatalf("%d %s", got.Status, got.Body)
			}
			testwait.Until(t, "a is empty", func() bool {
				s, empty := state(r, "a")
				return s == "draining" && empty
			})
			if page := string(r.Do("GET", "/metrics", "").Body); !strings.Contains(page,
				`tandem_worker_draining{role="target",worker="a"} 1`) {
				t.Error("/metrics does not tell")
			}
			before, others := len(a.Requests()), len(targets[1].Requests())
			testwait.Until(t, "b has more", func() bool { return len(targets[1].Requests()) > others+8 })
			if n := len(a.Requests()) - before; n > 0 {
				t.Errorf("%d requests went to the drained target", n)
			}
			if got := r.Post("/cluster/drain", `{"worker":"a","undo":true}`); got.Status != 200 {
				t.Fatalf("%d %s", got.Status, got.Body)
			}
			testwait.Until(t, "a has requests again", func() bool { return len(a.Requests()) > before })
		})
	}
}

func TestDrainAnswers(t *testing.T) {
	r := rig.Start(t, nil)
	block := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{ID: "a", Decode: block.Script(r.Tok, "one two three")})
	for body, want := range map[string]string{
		`{"worker":"c"}`:                         `there is no worker \"c\", only a`,
		`{"worker":"c","undo":true}`:             `only a`,
		`{}`:                                     "is empty",
		`{"worker":"a","wroker":"a"}`:            "wroker",
		`{"worker":"a","undo":true,"stop":true}`: "neither move nor stop",
		`{"worker":"a","stop":true}`:             "is ready",
		`[`:                                      "no JSON object",
	} {
		if got := r.Post("/cluster/drain", body); got.Status != 400 || !strings.Contains(string(got.Body), want) {
			t.Errorf("%s: %d %s, want %s", body, got.Status, got.Body, want)
		}
	}
	if got := r.Post("/cluster/drain", `{"worker":"a"}`, "Origin", "https://example.com"); got.Status != 403 {
		t.Errorf("from another site: %d", got.Status)
	}
	// The last target with a request: the answer says what it means, and the request stays.
	answer := r.Send(t.Context(), rig.ChatBody(""))
	rig.Receive(t, block.Admitted, "the request")
	got := r.Post("/cluster/drain", `{"worker":"a","move":true}`)
	var said struct {
		Busy, Moving int
		Empty        bool
		State        string
		Detail       string
	}
	if err := json.Unmarshal(got.Body, &said); err != nil || said.Busy != 1 || said.Moving != 0 || said.Empty ||
		said.State != "draining" || !strings.Contains(said.Detail, "1 requests stay") {
		t.Errorf("%d %s", got.Status, got.Body)
	}
	if got := r.Post("/cluster/drain", `{"worker":"a"}`); !strings.Contains(string(got.Body), "no other target is ready") {
		t.Errorf("%s", got.Body)
	}
	if got := r.Post("/cluster/drain", `{"worker":"a","stop":true}`); got.Status != 400 ||
		!strings.Contains(string(got.Body), "1 requests at work") {
		t.Errorf("stop of a busy worker: %d %s", got.Status, got.Body)
	}
	close(block.Release)
	if got := rig.Receive(t, answer, "the answer"); got.Status != 200 {
		t.Errorf("the request that was there: %d %s", got.Status, got.Body)
	}
	testwait.Until(t, "a is empty", func() bool { _, empty := state(r, "a"); return empty })
	if got := r.Post("/cluster/drain", `{"worker":"a","stop":true}`); got.Status != 200 {
		t.Errorf("stop: %d %s", got.Status, got.Body)
	}
	testwait.Until(t, "a has left", func() bool { s, _ := state(r, "a"); return s == "lost" })
}

// TestDrainNeedsTrust: where there are keys, only a trusted one may.
func TestDrainNeedsTrust(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("user:some-key-of-a-user\nops,trusted:some-key-of-operators\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := rig.Start(t, func(cfg *app.Config) { cfg.APIKeyFile = file })
	r.Target(gatewaytest.WorkerOptions{ID: "a", Decode: r.Reply("one", 1), Role: tandemv1.Role_ROLE_TARGET})
	for key, status := range map[string]int{"": 401, "some-key-of-a-user": 403, "some-key-of-operators": 200} {
		if got := r.Post("/cluster/drain", `{"worker":"a"}`, "Authorization", "Bearer "+key); got.Status != status {
			t.Errorf("key %q: %d %s, want %d", key, got.Status, got.Body, status)
		}
	}
}
