package e2e

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// reached is where a worker is, as /cluster tells it.
type reached struct {
	ID            string
	State         string
	Address       string
	RemoteAddress string `json:"remote_address"`
	Attached      []string
}

// reachedAt are the workers of a cluster by their ids.
func reachedAt(t *testing.T, c *client.Client) map[string]reached {
	t.Helper()
	body, err := c.Get(t.Context(), "/cluster")
	if err != nil {
		t.Fatal(err)
	}
	var table struct{ Workers []reached }
	if err := json.Unmarshal(body, &table); err != nil {
		t.Fatal(err)
	}
	out := map[string]reached{}
	for _, w := range table.Workers {
		out[w.ID] = w
	}
	return out
}

// callers are the other ends of connections to a port that a process listens at, as addresses of IPv4.
func callers(t *testing.T, pid int, address string) (from []string) {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		t.Fatal(err)
	}
	const established = "01"
	for line := range strings.Lines(string(table)) {
		// sl local_address rem_address st …, addresses in the processor's byte order
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != established {
			continue
		}
		_, at, _ := strings.Cut(f[1], ":")
		other, _, _ := strings.Cut(f[2], ":")
		ip, err := hex.DecodeString(other)
		var own int
		if _, serr := fmt.Sscanf(at, "%X", &own); err != nil || serr != nil {
			t.Fatalf("%s: %q", f, line)
		}
		if fmt.Sprint(own) == port {
			slices.Reverse(ip)
			from = append(from, net.IP(ip).String())
		}
	}
	return from
}

// sharesMemory says that a process has a stream in memory that it shares with another one.
func sharesMemory(t *testing.T, pid int) bool {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Error(err)
	}
	return bytes.Contains(maps, []byte("memfd:tandem-stream"))
}

// TestServedModelForOtherHosts: other hosts reach the target and the draft of a tandem serve whose registry they reach:
// one gets the model and uses the draft. Whoever has no certificate of the cluster gets nothing. Processes of the
// served host go on using its sockets.
func TestServedModelForOtherHosts(t *testing.T) {
	if device != "" {
		t.Skip("one card is not two devices")
	}
	needPrograms(t)
	h := makeHosts(t)
	const here = "10.231.2.1" // of the head, as stage 2 reaches it
	registry := net.JoinHostPort(here, "9104")
	ours, theirs := newTrust(t), newTrust(t)
	var cl *cluster.Cluster
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := h.in(h.head, func() (err error) {
		cl, err = cluster.Start(ctx, cluster.Options{Args: []string{"--demo", "--threads", "1", "--registry-listen",
			registry, "--authority", ours.dir}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, "the cluster", cl) })
	c := client.New(cl.HTTP)
	c.HTTP.Transport = &http.Transport{DialContext: h.dialer(h.head)}

	workers := reachedAt(t, c)
	target, draft := workers["worker-target"], workers["worker-draft"]
	for _, w := range []reached{target, draft} {
		if host, _, err := net.SplitHostPort(w.RemoteAddress); err != nil || host != here ||
			!strings.HasPrefix(w.Address, "unix://") {
			t.Fatalf("%s is at %q and for others at %q", w.ID, w.Address, w.RemoteAddress)
		}
	}
	if w := workers["worker-prefill"]; w.RemoteAddress != "" {
		t.Errorf("nobody else wants the scorer, which is at %s", w.RemoteAddress)
	}
	r := client.Request{Messages: chat("What is DDTree?"), MaxTokens: 20}
	want, err := c.Do(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	pid := cl.Find("worker-target")
	shares := false
	drafted := r
	drafted.Speculation = &client.Speculation{Mode: "chain"}
	if _, err := c.Stream(t.Context(), drafted, func(string) { shares = shares || sharesMemory(t, pid) }); err != nil {
		t.Fatal(err)
	}
	if !shares {
		t.Error("target and draft of one host share no memory")
	}
	if got := reachedAt(t, c)["worker-target"].Attached; !slices.Equal(got, []string{draft.ID}) {
		t.Errorf("the target uses the drafts %q", got)
	}
	for _, w := range []reached{target, draft} {
		if from := callers(t, pid, w.RemoteAddress); len(from) != 0 {
			t.Errorf("%s is asked over the network of its own host, from %q", w.ID, from)
		}
	}
	strangers(t, target.RemoteAddress, codes.Unavailable, ours, theirs, grpc.WithContextDialer(
		func(ctx context.Context, address string) (net.Conn, error) {
			return h.dialer(h.stage(2))(ctx, "tcp", address)
		}))

	file := filepath.Join(t.TempDir(), "fetched.gguf")
	var fetched *cluster.Joined
	if err := h.without(cl.Dir, h.stage(2), func() (err error) {
		fetched, err = cluster.Join(registry, "fetched", append(ours.join(), "--threads", "1", "--listen",
			net.JoinHostPort(h.address(2), "9001"), "--model", file, "--model-from", "auto")...)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, "the other host's target", fetched) })
	eventually(t, "the other host's target is ready, and uses the draft", func() bool {
		w := reachedAt(t, c)["fetched"]
		return w.State == "ready" && slices.Equal(w.Attached, []string{draft.ID})
	})
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	model, err := os.ReadFile(filepath.Join(root, "models", "tandem-tiny-target-q4_k_m.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, model) {
		t.Errorf("what came is not the model: %d bytes, %v", len(got), err)
	}
	if _, err := c.Post(t.Context(), "/cluster/drain", map[string]any{"worker": "worker-target"}); err != nil {
		t.Fatal(err)
	}
	got, err := c.Do(t.Context(), r)
	if err != nil || got.Text != want.Text || got.Usage.Timings.AcceptedTokens == 0 {
		t.Errorf("text %q with %d accepted tokens, %v; want %q", got.Text, got.Usage.Timings.AcceptedTokens, err, want.Text)
	}
	if from := callers(t, pid, draft.RemoteAddress); slices.Index(from, h.address(2)) < 0 {
		t.Errorf("the other host does not ask the draft: %q", from)
	}
}
