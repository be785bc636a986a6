package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/etcd"
)

// gateway is a process "tandem gateway".
type gateway struct {
	*client.Client
	url, registry string

	cmd   *exec.Cmd
	ended chan struct{}
	mu    sync.Mutex
	log   bytes.Buffer
}

func (g *gateway) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.log.Write(p)
}

// Kill ends the process with SIGKILL.
func (g *gateway) Kill() {
	_ = g.cmd.Process.Kill()
	<-g.ended
}

// startGateway runs a gateway whose registry listens at an address of its own host.
func startGateway(t *testing.T, registry string, args ...string) *gateway {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(freePorts(t, "127.0.0.1", 1)[0])
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{url: "http://127.0.0.1:" + port, registry: registry, ended: make(chan struct{})}
	g.Client = client.New(g.url)
	g.cmd = exec.Command(filepath.Join(root, "bin", "tandem"), append([]string{"gateway", "--port", port,
		"--grpc-port=-1", "--registry-listen", registry, "--log-level", "info"}, args...)...)
	g.cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir())
	g.cmd.Stderr, g.cmd.Stdout = g, g
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = g.cmd.Wait()
		close(g.ended)
	}()
	t.Cleanup(func() {
		g.Kill()
		if t.Failed() {
			g.mu.Lock()
			defer g.mu.Unlock()
			t.Logf("log of the gateway at %s:\n%s", registry, g.log.String())
		}
	})
	return g
}

// ready waits until a gateway has so many targets.
func (g *gateway) ready(t *testing.T, targets int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d targets are ready at %s", targets, g.registry), func() bool {
		workers, err := g.Workers(t.Context())
		n := 0
		for _, w := range workers {
			if w.State == "ready" {
				n++
			}
		}
		return err == nil && n == targets
	})
}

// event is one of a stream of the Responses API.
type event struct {
	Type     string
	Sequence int `json:"sequence_number"`
	Delta    string
	Response struct{ ID, Status string }
}

// events are those of a stream, one at a time.
type events struct {
	body  io.ReadCloser
	lines *bufio.Scanner
}

// open sends a request that is answered by a stream.
func (g *gateway) open(t *testing.T, method, path string, body any) *events {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	if body == nil {
		text = nil
	}
	request, err := http.NewRequestWithContext(t.Context(), method, g.url+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reply.Body.Close() })
	if reply.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(reply.Body)
		t.Fatalf("%s %s: %d %s", method, path, reply.StatusCode, text)
	}
	lines := bufio.NewScanner(reply.Body)
	lines.Buffer(nil, 1<<20)
	return &events{reply.Body, lines}
}

// next returns the next event; false: the stream has ended.
func (e *events) next(t *testing.T) (ev event, ok bool) {
	t.Helper()
	for e.lines.Scan() {
		data, is := strings.CutPrefix(e.lines.Text(), "data: ")
		if !is {
			continue
		}
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		return ev, true
	}
	return ev, false
}

// rest returns the further events.
func (e *events) rest(t *testing.T) (list []event) {
	t.Helper()
	for {
		ev, ok := e.next(t)
		if !ok {
			return list
		}
		list = append(list, ev)
	}
}

func joined(list []event) string {
	var b strings.Builder
	for _, ev := range list {
		if ev.Type == "response.output_text.delta" {
			b.WriteString(ev.Delta)
		}
	}
	return b.String()
}

// TestTwoGateways: two gateways on one etcd have the same workers; when one is killed during a response, its client
// reads on at the other with the text of an undisturbed one, new requests are answered at once, and kept responses are
// there; without the etcd the gateway serves on and says so.
func TestTwoGateways(t *testing.T) {
	needPrograms(t)
	var count strings.Builder
	for i := range 120 {
		fmt.Fprintf(&count, "%d ", i)
	}
	options, err := cluster.Scripted(t.TempDir(), []cluster.Rule{
		{Prompt: "count", Emit: count.String(), TokensPerSecond: 60, Accept: []int{3}},
		{Prompt: "hello", Emit: "Good day."},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range options.Env {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	server := etcd.Start(t)
	at := freePorts(t, "127.0.0.1", 2)
	store := "etcd://" + server.Endpoint + "/e2e"
	a, b := startGateway(t, at[0], "--registry", store), startGateway(t, at[1], "--registry", store)
	for i, id := range []string{"one", "two"} {
		// Each is told of one gateway and learns of the other.
		j, err := cluster.Join(at[i], id, "--engine", filepath.Join(root, "bin", "tandem-engine-scripted"), "--lanes", "4")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { end(t, id, j) })
	}
	a.ready(t, 2)
	b.ready(t, 2)

	say := map[string]any{"input": "Say hello."}
	var first struct {
		ID         string
		OutputText string `json:"output_text"`
	}
	decode(t, a.Client, "/v1/responses", say, &first)
	if first.OutputText != "Good day." {
		t.Fatalf("said %q", first.OutputText)
	}

	ask := map[string]any{"input": "Please count.", "stream": true, "max_output_tokens": 2000}
	undisturbed := joined(b.open(t, "POST", "/v1/responses", ask).rest(t))
	if undisturbed != strings.TrimSpace(count.String()) && undisturbed != count.String() {
		t.Fatalf("counted %q", undisturbed)
	}
	stream := a.open(t, "POST", "/v1/responses", ask)
	var read []event
	for len(read) < 60 {
		ev, ok := stream.next(t)
		if !ok {
			t.Fatalf("ended after %d events", len(read))
		}
		read = append(read, ev)
	}
	a.Kill()
	killed := time.Now()

	decode(t, b.Client, "/v1/responses", map[string]any{"input": "Say hello.", "previous_response_id": first.ID}, nil)
	t.Logf("a new request was answered %v after the kill", time.Since(killed))

	id, last := read[0].Response.ID, read[len(read)-1].Sequence
	more := b.open(t, "GET", fmt.Sprintf("/v1/responses/%s?stream=true&starting_after=%d", id, last), nil)
	ev, ok := more.next(t)
	t.Logf("the stream went on %v after the kill", time.Since(killed))
	if !ok || ev.Sequence != last+1 {
		t.Fatalf("after event %d comes %+v", last, ev)
	}
	all := append(append(read, ev), more.rest(t)...)
	if got := joined(all); got != undisturbed {
		t.Errorf("the text is\n%q, not\n%q", got, undisturbed)
	}
	for i, ev := range all {
		if ev.Sequence != i {
			t.Fatalf("event %d has the number %d", i, ev.Sequence)
		}
	}
	if end := all[len(all)-1]; end.Type != "response.completed" || end.Response.ID != id {
		t.Errorf("ended with %+v", end)
	}
	// As a whole it is what it was in parts.
	again := b.open(t, "GET", "/v1/responses/"+id+"?stream=true", nil).rest(t)
	for i, ev := range read {
		if again[i].Type != ev.Type || again[i].Delta != ev.Delta {
			t.Fatalf("event %d was %+v and is %+v", i, ev, again[i])
		}
	}
	if _, err := b.Get(t.Context(), "/v1/responses/"+first.ID); err != nil {
		t.Errorf("a response that the killed gateway kept: %v", err)
	}

	server.Stop()
	began := time.Now()
	decode(t, b.Client, "/v1/responses", say, nil)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a request without the store took %v", took)
	}
	eventually(t, "the gateway says that the store is away", func() bool {
		health, err := b.Get(t.Context(), "/health")
		return err == nil && strings.Contains(string(health), "--registry")
	})
	server.Again(t)
	eventually(t, "the gateway is well again", func() bool {
		health, err := b.Get(t.Context(), "/health")
		return err == nil && !strings.Contains(string(health), "--registry")
	})
}

// decode posts a request and reads its answer into value, nil = it need only succeed.
func decode(t *testing.T, c *client.Client, path string, body, value any) {
	t.Helper()
	reply, err := c.Post(t.Context(), path, body)
	if err != nil {
		t.Fatal(err)
	}
	if value != nil {
		if err := json.Unmarshal(reply, value); err != nil {
			t.Fatalf("%s: %v", reply, err)
		}
	}
}

// TestTokenAtTwoGateways: a join token that was used at one gateway is refused at the other, which has a copy of the
// authority's folder.
func TestTokenAtTwoGateways(t *testing.T) {
	needPrograms(t)
	ip := ownAddress(t)
	server := etcd.Start(t)
	at := freePorts(t, ip, 2)
	one, two := filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "two")
	certs(t, "init", "--authority", one)
	if err := os.CopyFS(two, os.DirFS(one)); err != nil {
		t.Fatal(err)
	}
	store := "etcd://" + server.Endpoint
	a := startGateway(t, at[0], "--registry", store, "--authority", one)
	b := startGateway(t, at[1], "--registry", store, "--authority", two)
	token := certs(t, "token", "target", "--authority", one)
	worker := func(gateway, id string) *cluster.Joined {
		j, err := cluster.Join(gateway, id, "--listen", net.JoinHostPort(ip, "0"), "--certs", t.TempDir(), "--join-token",
			token)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(j.Close)
		return j
	}
	worker(at[0], "first")
	a.ready(t, 1)
	b.ready(t, 1) // with the certificate that the other gateway gave
	stranger := worker(at[1], "stranger")
	eventually(t, "the second one is told why", func() bool { return strings.Contains(stranger.Log(), "has been used") })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, g := range []*gateway{a, b} {
		workers, err := g.Workers(ctx)
		if err != nil || len(workers) != 1 {
			t.Errorf("workers at %s: %+v, %v", g.registry, workers, err)
		}
	}
}
