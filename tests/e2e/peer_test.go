package e2e

import (
	"encoding/json"
	"io"
	"maps"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// exactly asks over the chat API and returns the answer with its log-probabilities as they were sent, and how many
// prompt tokens came from the cache.
func exactly(t *testing.T, c *client.Client, messages []any, more map[string]any) (answer, text string, cached int) {
	t.Helper()
	body := map[string]any{"messages": messages, "max_tokens": 30, "temperature": 0, "enable_thinking": false,
		"logprobs": true, "top_logprobs": 4}
	maps.Copy(body, more)
	raw, err := c.Post(t.Context(), "/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Choices []struct {
			Message  struct{ Content string }
			Logprobs json.RawMessage
		}
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil || len(v.Choices) != 1 {
		t.Fatalf("%v: %s", err, raw)
	}
	text = v.Choices[0].Message.Content
	return text + string(v.Choices[0].Logprobs), text, v.Usage.Details.Cached
}

// workerOf is what /cluster says of a worker, without a state while it has not joined.
func workerOf(t *testing.T, c *client.Client, id string) client.Worker {
	t.Helper()
	workers, err := c.Workers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workers {
		if w.ID == id {
			return w
		}
	}
	return client.Worker{}
}

// join starts a target beside those of a cluster and waits until it is ready.
func join(t *testing.T, c *client.Client, registry, id string, args ...string) *cluster.Joined {
	t.Helper()
	joined, err := cluster.Join(registry, id, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, "worker "+id, joined) })
	eventually(t, "worker "+id+" is ready", func() bool { return workerOf(t, c, id).State == "ready" })
	return joined
}

// tap listens at a socket and hands every connection on to a server, until the test ends. What the server sends goes
// through Change, if it was set before the connection was made.
type tap struct {
	// Change sees the bytes that come next, and how many came before on the connection. It may change them; false ends
	// the connection.
	Change atomic.Pointer[func(before int, data []byte) bool]
	group  sync.WaitGroup
}

// newTap returns a tap at a socket before another one, whose server may start later.
func newTap(t *testing.T, at, to string) *tap {
	t.Helper()
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	x := &tap{}
	var mu sync.Mutex // guards open
	open := []io.Closer{l}
	x.group.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", to)
			if err != nil {
				_ = client.Close()
				continue
			}
			mu.Lock()
			open = append(open, client, server)
			mu.Unlock()
			change := x.Change.Load()
			x.group.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
			x.group.Go(func() { back(client, server, change); _ = client.Close() })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		x.group.Wait()
	})
	return x
}

// back copies what a server sends.
func back(client io.Writer, server io.Reader, change *func(before int, data []byte) bool) {
	data := make([]byte, 16<<10)
	for before := 0; ; {
		n, err := server.Read(data)
		if change != nil && n > 0 && !(*change)(before, data[:n]) {
			return
		}
		if _, failed := client.Write(data[:n]); failed != nil || err != nil {
			return
		}
		before += n
	}
}

// TestPeerFails: a worker that holds a state is killed while it sends it, or what it sends differs in one bit: the
// prompt is read, and text and log-probabilities are those of a prompt that is read whole.
func TestPeerFails(t *testing.T) {
	const place = 100_000 // of a byte of the connection, in the state's first part
	for name, c := range map[string]struct {
		reason string
		change func(sender int, before int, data []byte) bool
	}{
		"killed": {"lost", func(sender int, before int, data []byte) bool {
			if before+len(data) <= place {
				return true
			}
			_ = syscall.Kill(sender, syscall.SIGKILL)
			return false
		}},
		"changed": {"damaged", func(_ int, before int, data []byte) bool {
			if i := place - before; i >= 0 && i < len(data) {
				data[i] ^= 4
			}
			return true
		}},
	} {
		t.Run(name, func(t *testing.T) {
			registry := "unix://" + filepath.Join(t.TempDir(), "registry")
			cl := start(t, "--demo", "--registry-listen", registry, "--route", "load", "--read-ahead", "off")
			http := client.New(cl.HTTP)
			// With equal loads the worker of the lowest name gets the request: the sender, then the one that joins later.
			dir := t.TempDir()
			at, to := filepath.Join(dir, "tap"), filepath.Join(dir, "s")
			way := newTap(t, at, to)
			sender := join(t, http, registry, "sender", "--listen", "unix://"+to, "--advertise", "unix://"+at)
			list := conversation()
			_, text, _ := exactly(t, http, list, nil)
			list = next(list, text)
			join(t, http, registry, "fetcher")
			var changed atomic.Bool
			change := func(before int, data []byte) bool {
				if before+len(data) > place {
					changed.Store(true)
				}
				return c.change(sender.PID(), before, data)
			}
			way.Change.Store(&change)
			got, _, cached := exactly(t, http, list, nil)
			if !changed.Load() {
				t.Error("nothing was fetched")
			}
			cold, _, _ := exactly(t, http, list, map[string]any{"cache_prompt": false})
			if got != cold || cached != 0 {
				t.Errorf("with %d cached tokens\n%s\ncold\n%s", cached, got, cold)
			}
			eventually(t, "heartbeats tell of the miss", func() bool {
				n := workerOf(t, http, "fetcher").Counters
				return n["peer_fetches_failed_"+c.reason] == 1 && n["peer_fetches"] == 0
			})
		})
	}
}

// TestStatesFromAnotherWorker: the next turn of a conversation that goes to another worker starts from the state that
// this one fetches from the first, with the text and the log-probabilities of a prompt that is read whole. Without
// --peer-fetch it is read whole.
func TestStatesFromAnotherWorker(t *testing.T) {
	for _, fetch := range []string{"on", "off"} {
		t.Run(fetch, func(t *testing.T) {
			registry := "unix://" + filepath.Join(t.TempDir(), "registry")
			// With equal loads the worker of the lowest name gets the request.
			cl := start(t, "--demo", "--registry-listen", registry, "--route", "load", "--read-ahead", "off",
				"--peer-fetch", fetch)
			c := client.New(cl.HTTP)
			list := conversation()
			_, text, _ := exactly(t, c, list, nil)
			list = next(list, text)
			join(t, c, registry, "another", "--peer-fetch", fetch)
			worker := func(id string) client.Worker { return workerOf(t, c, id) }
			hit, _, cached := exactly(t, c, list, nil)
			cold, _, none := exactly(t, c, list, map[string]any{"cache_prompt": false})
			if hit != cold || none != 0 {
				t.Errorf("with %d cached tokens\n%s\ncold\n%s", cached, hit, cold)
			}
			if fetch == "off" {
				if cached != 0 {
					t.Errorf("%d tokens are cached", cached)
				}
				return
			}
			if cached < 600 {
				t.Errorf("%d tokens are cached", cached)
			}
			eventually(t, "heartbeats tell of the fetch", func() bool {
				to, from := worker("another").Counters, worker("worker-target").Counters
				return to["peer_fetches"] == 1 && to["peer_fetched_bytes"] > 0 && from["peer_sends"] == 1
			})
		})
	}
}
