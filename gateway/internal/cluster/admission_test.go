package cluster_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/grpc/metadata"
)

// turns is a worker with one slot on which requests run one after the other; it notes the order in which their
// prompts came.
type turns struct {
	mu    sync.Mutex
	order []string
	next  chan struct{}
}

func (s *turns) decode(r *rig.Rig) gatewaytest.Decode {
	ok := r.Reply("ok", 1)
	return func(req *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) error {
		text := r.Tok.Decode(req.GetPromptTokens(), false)
		_, mark, _ := strings.Cut(text, "mark:")
		s.mu.Lock()
		s.order = append(s.order, strings.Fields(mark)[0])
		s.mu.Unlock()
		select {
		case <-s.next:
		case <-stream.Context().Done(): // a test that failed ends all the same
		}
		return ok(req, stream)
	}
}

func marked(mark, more string) string {
	return `{"messages":[{"role":"user","content":"mark:` + mark + ` "}]` + more + `}`
}

// TestQueueIsFair: requests of one key, or of one session where there are no keys, take turns with those of others, and
// urgent ones come first; the same holds for gRPC, and between both.
func TestQueueIsFair(t *testing.T) {
	overHTTP := func(more string, header ...string) func(*rig.Rig, string) error {
		return func(r *rig.Rig, mark string) error {
			if a := r.Post("/v1/chat/completions", marked(mark, more), header...); a.Status != http.StatusOK {
				return fmt.Errorf("%d %s", a.Status, a.Body)
			}
			return nil
		}
	}
	overRPC := func(session string, md ...string) func(*rig.Rig, string) error {
		return func(r *rig.Rig, mark string) error {
			_, err := rig.RunRPC(metadata.AppendToOutgoingContext(r.T.Context(), md...), r.RPC(),
				&tandemv1.GenerateRequest{Input: rig.ChatInput("mark:"+mark+" ", false), SessionId: session})
			return err
		}
	}
	keys := func(c *app.Config) { c.APIKey = append(c.APIKey, "key-a", "key-b") }
	// Of the two only b may say how urgent it is.
	trusted := func(c *app.Config) {
		c.APIKeyFile = filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(c.APIKeyFile, []byte("a:key-a\nb,trusted:key-b\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	byTurns := []string{"a1", "b1", "a2", "b2", "a3"}
	for _, c := range []struct {
		name   string
		change func(*app.Config)
		as     func(who string) func(*rig.Rig, string) error
		want   []string
	}{
		{"keys", keys, func(who string) func(*rig.Rig, string) error {
			return overHTTP(`,"session_id":"same"`, "x-api-key", "key-"+who)
		}, byTurns},
		{"sessions", nil, func(who string) func(*rig.Rig, string) error { return overHTTP(`,"session_id":"` + who + `"`) },
			byTurns},
		{"hosts", nil, func(string) func(*rig.Rig, string) error { return overHTTP("") }, []string{"a1", "a2", "a3", "b1",
			"b2"}},
		{"gRPC, keys", keys, func(who string) func(*rig.Rig, string) error {
			return overRPC("same", "authorization", "Bearer key-"+who)
		}, byTurns},
		{"gRPC, sessions", nil, func(who string) func(*rig.Rig, string) error { return overRPC(who, "x-session-id", "same") },
			byTurns},
		{"gRPC, sessions in metadata", nil,
			func(who string) func(*rig.Rig, string) error { return overRPC("", "x-session-id", who) }, byTurns},
		{"gRPC, hosts", nil, func(string) func(*rig.Rig, string) error { return overRPC("") },
			[]string{"a1", "a2", "a3", "b1", "b2"}},
		{"priority of a trusted key", trusted, func(who string) func(*rig.Rig, string) error {
			return overHTTP("", "x-api-key", "key-"+who, "x-priority", map[string]string{"a": "5", "b": "7"}[who])
		}, []string{"a1", "b1", "b2", "a2", "a3"}},
		{"priority of another key", trusted, func(who string) func(*rig.Rig, string) error {
			return overHTTP("", "x-api-key", "key-"+who, "x-priority", map[string]string{"a": "9", "b": "5"}[who])
		}, byTurns},
		{"priority without keys", nil, func(who string) func(*rig.Rig, string) error {
			return overHTTP("", "x-priority", map[string]string{"a": "5", "b": "9"}[who])
		}, []string{"a1", "a2", "a3", "b1", "b2"}},
		{"gRPC, priority of a trusted key", trusted, func(who string) func(*rig.Rig, string) error {
			return overRPC("", "x-api-key", "key-"+who, "x-priority", map[string]string{"a": "5", "b": "7"}[who])
		}, []string{"a1", "b1", "b2", "a2", "a3"}},
		{"gRPC, priority of another key", trusted, func(who string) func(*rig.Rig, string) error {
			return overRPC("", "x-api-key", "key-"+who, "x-priority", map[string]string{"a": "9", "b": "5"}[who])
		}, byTurns},
		{"gRPC and HTTP, keys", keys, func(who string) func(*rig.Rig, string) error {
			if who == "a" {
				return overHTTP("", "x-api-key", "key-a")
			}
			return overRPC("", "x-api-key", "key-b")
		}, byTurns},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rig.Start(t, c.change)
			s := &turns{next: make(chan struct{})}
			r.Target(gatewaytest.WorkerOptions{Slots: 1, Decode: s.decode(r)})
			var group sync.WaitGroup
			waiting := -1 // the first request runs
			for _, mark := range []string{"a1", "a2", "a3", "b1", "b2"} {
				send := c.as(mark[:1])
				group.Go(func() {
					if err := send(r, mark); err != nil {
						t.Errorf("%s: %v", mark, err)
					}
				})
				waiting++
				r.Eventually(mark+" is there", func() bool {
					s.mu.Lock()
					defer s.mu.Unlock()
					return len(s.order) == 1 && r.Parts.Cluster.Targets.Queued() == waiting
				})
			}
			close(s.next)
			group.Wait()
			if !slices.Equal(s.order, c.want) {
				t.Errorf("order %v, want %v", s.order, c.want)
			}
		})
	}
}

// TestMemoryIsReserved: a worker's tokens are shared by prompt plus output of what runs, not by slots alone.
func TestMemoryIsReserved(t *testing.T) {
	r := rig.Start(t, nil)
	b := gatewaytest.NewBlock()
	r.Target(gatewaytest.WorkerOptions{Slots: 8, MaxContext: 1000, KVTokens: 1000, Decode: b.Script(r.Tok, "one two")})
	first := r.Send(t.Context(), rig.ChatBody(`"max_tokens":700`))
	rig.Receive(t, b.Admitted, "first request runs")
	second := r.Send(t.Context(), rig.ChatBody(`"max_tokens":700`))
	r.Eventually("second request waits for memory", func() bool { return r.Parts.Cluster.Targets.Queued() == 1 })
	text := string(r.Do("GET", "/metrics", "").Body)
	if used := metric(text, `tandem_kv_tokens{state="used",worker="t1"}`); used <= 700 || used >= 1000 {
		t.Errorf("%v tokens are reported as reserved, want 700 and those of the prompt", used)
	}
	close(b.Release)
	for _, done := range []<-chan rig.Answer{first, second} {
		if a := rig.Receive(t, done, "answer"); a.Status != http.StatusOK {
			t.Errorf("%d %s", a.Status, a.Body)
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
