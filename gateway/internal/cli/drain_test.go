package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// drainGateway plays a gateway with one worker, which is empty some looks after it was told to drain, or to move.
type drainGateway struct {
	mu    sync.Mutex // guards the rest
	state string
	busy  int // looks until it is empty, -1 = not before it is told to move
	asked []string
}

func (g *drainGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.Method == http.MethodGet {
		if g.state == "draining" && g.busy > 0 {
			g.busy--
		}
		fmt.Fprintf(w, `{"workers":[{"id":"a","state":%q,"empty":%v,"lanes_busy":%d}]}`, g.state,
			g.state == "draining" && g.busy == 0, max(g.busy, 1))
		return
	}
	var ask struct {
		Worker           string
		Undo, Move, Stop bool
	}
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil || ask.Worker != "a" {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":{"message":"there is no such worker, only a"}}`)
		return
	}
	switch {
	case ask.Undo:
		g.state, g.asked = "ready", append(g.asked, "undo")
	case ask.Stop:
		g.state, g.asked = "lost", append(g.asked, "stop")
	case ask.Move:
		g.state, g.busy, g.asked = "draining", 1, append(g.asked, "move")
	default:
		g.state, g.asked = "draining", append(g.asked, "drain")
	}
	fmt.Fprint(w, `{"detail":"no other target is ready"}`)
}

func TestDrain(t *testing.T) {
	for _, tt := range []struct {
		name  string
		busy  int
		args  string
		code  int
		asked string
		out   string
		err   string
	}{
		{"waits", 2, "a", 0, "drain", "a takes no new work\na is empty\n", "no other target is ready"},
		{"moves", -1, "a --move", 0, "move", "a is empty\n", ""},
		{"moves later", -1, "a --timeout 1ms", 0, "drain move", "a is empty\n", ""},
		{"stops", 1, "a --stop", 0, "drain stop", "a is empty\na has ended\n", ""},
		{"undo", 1, "a --undo", 0, "undo", "a takes work again\n", ""},
		{"unknown", 1, "b", 1, "", "", "only a"},
		{"undo and stop", 1, "a --undo --stop", 2, "", "", "--undo"},
		{"negative", 1, "a --timeout -1s", 2, "", "", "--timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := &drainGateway{state: "ready", busy: tt.busy}
			server := httptest.NewServer(g)
			t.Cleanup(server.Close)
			t.Cleanup(http.DefaultClient.CloseIdleConnections)
			args := append([]string{"drain", "--server", server.URL}, strings.Fields(tt.args)...)
			code, out, errOut := tandem(t, "", args...)
			g.mu.Lock()
			defer g.mu.Unlock()
			if code != tt.code || strings.Join(g.asked, " ") != tt.asked || !strings.HasSuffix(out, tt.out) ||
				!strings.Contains(errOut, tt.err) {
				t.Errorf("%d, asked %v, %q, %q", code, g.asked, out, errOut)
			}
		})
	}
}

// TestDrainUndone: the command ends when somebody else lets the worker take work again.
func TestDrainUndone(t *testing.T) {
	g := &drainGateway{state: "ready", busy: -1}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.ServeHTTP(w, r)
		if r.Method == http.MethodGet {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.state = "ready"
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	began := time.Now()
	code, _, errOut := tandem(t, "", "drain", "--server", server.URL, "a")
	if code != 1 || !strings.Contains(errOut, "a is ready") || time.Since(began) > time.Minute {
		t.Errorf("%d %q", code, errOut)
	}
}
