// Package e2e tests the programs in bin/ as a user runs them: tandem serve with real workers and the
// demonstration models.
package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/reference"
)

// Clusters that tests share, by their flags; started on first use, stopped at the end.
var (
	sharedMu sync.Mutex
	shared   = map[string]*cluster.Cluster{}
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, c := range shared {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := c.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "shared cluster:", err)
			code = 1
		}
		cancel()
		c.Close()
	}
	os.Exit(code)
}

// device is where shared clusters run all their roles; TANDEM_TEST_DEVICE=cuda:0 puts them on a card. The library of
// the device is then in bin/ too.
var device = os.Getenv("TANDEM_TEST_DEVICE")

// needPrograms skips a test when bin/ is not built.
func needPrograms(t *testing.T) {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	if missing := cluster.Missing(root); len(missing) > 0 {
		t.Skipf("bin/ lacks %s: run make build", strings.Join(missing, ", "))
	}
}

// start runs a cluster of the test's own.
func start(t *testing.T, args ...string) *cluster.Cluster {
	t.Helper()
	return launch(t, time.Minute, cluster.Options{Args: args})
}

// launch is start with more options, and a limit of the time until the cluster is ready.
func launch(t *testing.T, limit time.Duration, options cluster.Options) *cluster.Cluster {
	t.Helper()
	needPrograms(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c, err := cluster.Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, "the cluster", c) })
	return c
}

// end closes what a test started, and shows its log if the test failed.
func end(t *testing.T, name string, process interface {
	Close()
	Log() string
}) {
	process.Close()
	if t.Failed() {
		t.Logf("log of %s:\n%s", name, process.Log())
	}
}

// demo returns a cluster with these flags that other tests use too.
func demo(t *testing.T, args ...string) (*cluster.Cluster, *client.Client) {
	t.Helper()
	needPrograms(t)
	if device != "" {
		args = append([]string{"--device", device}, args...)
	}
	key := strings.Join(args, " ")
	sharedMu.Lock()
	defer sharedMu.Unlock()
	c := shared[key]
	if c == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var err error
		if c, err = cluster.Start(ctx, cluster.Options{Args: append([]string{"--demo"}, args...)}); err != nil {
			t.Fatal(err)
		}
		shared[key] = c
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the cluster:\n%s", c.Log())
		}
	})
	return c, client.New(c.HTTP)
}

func chat(text string) []client.Message { return []client.Message{{Role: "user", Content: text}} }

func seed(n int64) *int64 { return &n }

// goldenCase is an entry of tandem-tiny-q4km.json.
type goldenCase struct {
	Kind          string
	Prompt        string
	IDs           []int32
	Greedy        []int32
	Text          string
	AcceptLengths []int `json:"accept_lengths"`
}

// want is the text without the marker that ends the turn.
func (g goldenCase) want() string { return strings.TrimSuffix(g.Text, "<|im_end|>") }

func golden(t *testing.T) []goldenCase {
	t.Helper()
	var file struct{ Cases []goldenCase }
	if err := reference.Read("tandem-tiny-q4km.json", &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) == 0 {
		t.Fatal("no golden cases")
	}
	return file.Cases
}

// patience is how long a test waits for what must come. Nothing promises a time: the machine may be busy with
// other things.
const patience = time.Minute

// eventually asks until ok says yes.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not: %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond) // poll: another process changes this
	}
}

// inTime asks until no proposal of an answer was late. On a busy machine some are, and each of them costs a step.
func inTime(t *testing.T, ask func() (client.Reply, error)) client.Reply {
	t.Helper()
	var reply client.Reply
	eventually(t, "an answer without late proposals", func() bool {
		var err error
		if reply, err = ask(); err != nil {
			t.Fatal(err)
		}
		return !reply.Usage.Timings.SpeculationDegraded
	})
	return reply
}
