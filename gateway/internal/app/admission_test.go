package app

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// turns is a worker with one lane on which requests run one after the other; it notes the order in which their prompts came.
type turns struct {
	mu    sync.Mutex
	order []string
	next  chan struct{}
}

func (s *turns) decode(r *rig) gatewaytest.Decode {
	ok := r.reply("ok", 1)
	return func(req *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) error {
		text := r.tok.Decode(req.GetPromptTokens(), false)
		_, mark, _ := strings.Cut(text, "mark:")
		s.mu.Lock()
		s.order = append(s.order, strings.Fields(mark)[0])
		s.mu.Unlock()
		<-s.next
		return ok(req, stream)
	}
}

func marked(mark, more string) string {
	return `{"messages":[{"role":"user","content":"mark:` + mark + ` "}]` + more + `}`
}

// TestQueueIsFair: requests of one key, or of one session where there are no keys, take turns with those of others.
func TestQueueIsFair(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		as     func(who string) (more string, header []string)
	}{
		{"keys", func(c *Config) { c.APIKey = append(c.APIKey, "key-a", "key-b") },
			func(who string) (string, []string) {
				return `,"session_id":"same"`, []string{"x-api-key", "key-" + who}
			}},
		{"sessions", nil, func(who string) (string, []string) { return `,"session_id":"` + who + `"`, nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, c.change)
			s := &turns{next: make(chan struct{})}
			r.target(gatewaytest.WorkerOptions{Lanes: 1, Decode: s.decode(r)})
			var group sync.WaitGroup
			waiting := -1 // the first request runs
			for _, mark := range []string{"a1", "a2", "a3", "b1", "b2"} {
				more, header := c.as(mark[:1])
				group.Go(func() {
					if a := r.post("/v1/chat/completions", marked(mark, more), header...); a.status != http.StatusOK {
						t.Errorf("%s: %d %s", mark, a.status, a.body)
					}
				})
				waiting++
				r.eventually(mark+" is there", func() bool {
					s.mu.Lock()
					defer s.mu.Unlock()
					return len(s.order) == 1 && r.app.cluster.Targets.Queued() == waiting
				})
			}
			close(s.next)
			group.Wait()
			if want := []string{"a1", "b1", "a2", "b2", "a3"}; !slices.Equal(s.order, want) {
				t.Errorf("order %v, want %v", s.order, want)
			}
		})
	}
}

// TestMemoryIsReserved: a worker's tokens are shared by prompt plus output of what runs, not by lanes alone.
func TestMemoryIsReserved(t *testing.T) {
	r := start(t, nil)
	b := newBlock()
	r.target(gatewaytest.WorkerOptions{Lanes: 8, MaxContext: 1000, KVTokens: 1000, Decode: b.script(r, "one two")})
	first := r.send(t.Context(), chatBody(`"max_tokens":700`))
	receive(t, b.admitted, "first request runs")
	second := r.send(t.Context(), chatBody(`"max_tokens":700`))
	r.eventually("second request waits for memory", func() bool { return r.app.cluster.Targets.Queued() == 1 })
	text := string(r.do("GET", "/metrics", "").body)
	if used := metric(text, `tandem_kv_tokens{state="used",worker="t1"}`); used <= 700 || used >= 1000 {
		t.Errorf("%v tokens are reported as reserved, want 700 and those of the prompt", used)
	}
	close(b.release)
	for _, done := range []<-chan answer{first, second} {
		if a := receive(t, done, "answer"); a.status != http.StatusOK {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
}

// metric is the value of a line of the metrics, -1 when there is none.
func metric(text, name string) float64 {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err == nil {
				return v
			}
		}
	}
	return -1
}
