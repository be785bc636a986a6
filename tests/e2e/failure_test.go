package e2e

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// longRequest decodes 700 tokens: the one that ends a turn is forbidden.
func longRequest() client.Request {
	return client.Request{
		Prompt:    "<|im_start|>user\nWrite a long Go program.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
		MaxTokens: 700, Temperature: 0.8, Seed: seed(11), LogitBias: map[string]int{endOfTurn: -100},
	}
}

// endOfTurn is the id of <|im_end|> in the demonstration models.
const endOfTurn = "8162"

// enginesOf are the n engine processes of the target, in the order in which they were started.
func enginesOf(t *testing.T, cl *cluster.Cluster, n int) (engines []int) {
	t.Helper()
	target := cl.Find("worker-target")
	for _, p := range cl.Processes() {
		if p.Name == "tandem-engine" && p.Parent == target {
			engines = append(engines, p.PID)
		}
	}
	if len(engines) != n {
		t.Fatalf("%d engines of the target among %v, want %d", len(engines), cl.Processes(), n)
	}
	slices.Sort(engines)
	return engines
}

// killed kills a process in the middle of the long request's stream, whose text is to stay, and returns the answer.
func killed(t *testing.T, c *client.Client, want string, pid int) client.Reply {
	t.Helper()
	var kill sync.Once
	seen := 0
	got, err := c.Stream(t.Context(), longRequest(), func(text string) {
		seen += len(text)
		if seen > len(want)/4 {
			kill.Do(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Text != want {
		t.Errorf("the text changed:\n got %q\nwant %q", got.Text, want)
	}
	t.Logf("longest pause %v", got.Gap)
	return got
}

// TestDraftDies: killing the draft in the middle of a stream changes nothing but speed, and speculation comes back.
func TestDraftDies(t *testing.T) {
	cl := start(t, "--demo")
	c := client.New(cl.HTTP)
	want, err := c.Stream(t.Context(), longRequest(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want.Usage.CompletionTokens < 200 {
		t.Fatalf("the text ends after %d tokens, too early for this test: %q", want.Usage.CompletionTokens, want.Text)
	}
	draft := cl.Find("worker-draft")
	if draft == 0 {
		t.Fatalf("no worker-draft among %v", cl.Processes())
	}
	got := killed(t, c, want.Text, draft)
	// A second is usual on a busy machine; one that waited for the draft would stand still until the draft's lease ends,
	// after 6.
	if got.Gap > 5*time.Second {
		t.Errorf("the stream stood still for %v", got.Gap)
	}
	eventually(t, "drafts are accepted again", func() bool {
		reply, err := c.Do(t.Context(), client.Request{
			Messages: chat("What is DDTree?"), MaxTokens: 60, Speculation: &client.Speculation{Mode: "tree", Budget: 16},
		})
		return err == nil && reply.Usage.AcceptRate != nil && *reply.Usage.AcceptRate > 0.3
	})
	if again := cl.Find("worker-draft"); again == draft || again == 0 {
		t.Errorf("draft %d, then %d", draft, again)
	}
}

// TestEngineDies: a killed engine process is restarted by its worker and the request goes on.
func TestEngineDies(t *testing.T) {
	cl := start(t, "--demo")
	c := client.New(cl.HTTP)
	want, err := c.Stream(t.Context(), longRequest(), nil)
	if err != nil {
		t.Fatal(err)
	}
	killed(t, c, want.Text, enginesOf(t, cl, 1)[0])
}

// TestTargetDies: killing the target's worker in the middle of a stream delays it; the gateway replays on the
// restarted one.
func TestTargetDies(t *testing.T) {
	cl := start(t, "--demo")
	c := client.New(cl.HTTP)
	want, err := c.Stream(t.Context(), longRequest(), nil)
	if err != nil {
		t.Fatal(err)
	}
	killed(t, c, want.Text, cl.Find("worker-target"))
}

// TestCancel: requests that clients leave give back their slots, their engine sequences and their connections.
func TestCancel(t *testing.T) {
	cl, c := demo(t)
	before := sizes(t, cl)
	var cancelled atomic.Int32
	var group sync.WaitGroup
	for client := range 8 {
		group.Go(func() {
			for i := range 25 {
				ctx, cancel := context.WithCancel(t.Context())
				r := longRequest()
				r.Seed = seed(int64(client*100 + i))
				if i%5 == 4 {
					// Leaves while queued or in prefill.
					time.AfterFunc(time.Duration(i)*time.Millisecond, cancel)
					if _, err := c.Do(ctx, r); err != nil {
						cancelled.Add(1)
					}
				} else if _, err := c.Stream(ctx, r, func(string) { cancel() }); err != nil {
					cancelled.Add(1)
				}
				cancel()
			}
		})
	}
	group.Wait()
	if cancelled.Load() < 150 {
		t.Errorf("%d of 200 requests were cancelled", cancelled.Load())
	}
	busy := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(busy)
		}
	})
	eventually(t, "all slots are free", func() bool {
		metrics, err := c.Get(t.Context(), "/metrics")
		if err != nil {
			return false
		}
		busy = ""
		for line := range strings.Lines(string(metrics)) {
			counts := strings.HasPrefix(line, "tandem_requests_running") || strings.HasPrefix(line, "tandem_queue_depth") ||
				strings.HasPrefix(line, `tandem_lanes{state="busy"`)
			if counts && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
				busy += line
			}
		}
		return busy == ""
	})
	reply, err := c.Do(t.Context(), client.Request{Messages: chat("What is DDTree?"), MaxTokens: 60})
	if err != nil || reply.Text == "" {
		t.Fatalf("after the cancellations: %q, %v", reply.Text, err)
	}
	c.HTTP.CloseIdleConnections()
	eventually(t, "open files are back to where they were", func() bool {
		for name, after := range sizes(t, cl) {
			if after.Files > before[name].Files+8 {
				return false
			}
		}
		return true
	})
}

func sizes(t *testing.T, cl *cluster.Cluster) map[string]cluster.Sizes {
	t.Helper()
	out := map[string]cluster.Sizes{}
	for _, p := range cl.Processes() {
		s, err := cluster.SizesOf(p.PID)
		if err != nil {
			t.Fatal(err)
		}
		if p.Name != "tandem-engine" { // three of one name
			out[p.Name] = s
		}
	}
	return out
}

// TestStopLeavesNothing: SIGTERM ends everything in order, also with a request running: it may finish.
func TestStopLeavesNothing(t *testing.T) {
	cl := start(t, "--demo")
	if n := len(cl.Processes()); n < 7 {
		t.Errorf("%d processes, want gateway, three workers and three engines", n)
	}
	c := client.New(cl.HTTP)
	first := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		var once sync.Once
		r := longRequest()
		r.MaxTokens = 200
		_, err := c.Stream(context.Background(), r, func(string) { once.Do(func() { close(first) }) })
		done <- err
	}()
	select {
	case <-first:
	case err := <-done:
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := cl.Stop(ctx); err != nil {
		t.Errorf("exit: %v\n%s", err, cl.Log())
	}
	if err := testwait.For(t, done, "the running request ends"); err != nil {
		t.Errorf("the running request: %v", err)
	}
	nothingLeft(t, cl, true)
}

// TestKillLeavesNothing: even kill -9 of the parent leaves no process.
func TestKillLeavesNothing(t *testing.T) {
	cl := start(t, "--demo")
	cl.Kill()
	nothingLeft(t, cl, false)
}

func nothingLeft(t *testing.T, cl *cluster.Cluster, files bool) {
	t.Helper()
	eventually(t, "all processes are gone", func() bool {
		left := cl.Processes()
		if len(left) > 0 {
			t.Logf("left: %v", left)
		}
		return len(left) == 0
	})
	if !files {
		return
	}
	entries, err := os.ReadDir(cl.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "cache" {
			t.Errorf("left behind: %s", e.Name())
		}
	}
}
