package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// drain runs tandem drain, which has to succeed, and returns what it prints.
func drain(t *testing.T, cl *cluster.Cluster, args ...string) string {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(root, "bin", "tandem"),
		append([]string{"drain", "--server", cl.HTTP}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("tandem drain %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// TestDrain drains a draft, and then one of two targets amid streams, whose process ends with status 0: no request
// fails and all texts are the same.
func TestDrain(t *testing.T) {
	registry := "unix://" + filepath.Join(t.TempDir(), "registry")
	cl := start(t, "--demo", "--registry-listen", registry, "--route", "load")
	c := client.New(cl.HTTP)
	request := longRequest()
	request.MaxTokens = 250
	want, err := c.Stream(t.Context(), request, nil)
	if err != nil {
		t.Fatal(err)
	}
	if out := drain(t, cl, "worker-draft"); !strings.Contains(out, "worker-draft is empty") ||
		!strings.Contains(out, "no other draft is ready") {
		t.Errorf("drain of the draft says %q", out)
	}
	if got, err := c.Stream(t.Context(), request, nil); err != nil || got.Text != want.Text {
		t.Errorf("without the draft: %v, %q", err, got.Text)
	}
	drain(t, cl, "worker-draft", "--undo")
	eventually(t, "the draft is back", func() bool { return workerOf(t, c, "worker-draft").State == "ready" })

	// With equal loads the worker of the lowest name gets a request.
	another := join(t, c, registry, "another")
	var streams sync.WaitGroup
	for range 3 {
		streams.Go(func() {
			for range 2 {
				if got, err := c.Stream(t.Context(), request, nil); err != nil || got.Text != want.Text {
					t.Errorf("%v: the text changed:\n got %q\nwant %q", err, got.Text, want.Text)
				}
			}
		})
	}
	defer streams.Wait()
	eventually(t, "it has requests", func() bool { return workerOf(t, c, "another").LanesBusy > 0 })
	if out := drain(t, cl, "another", "--move", "--stop"); !strings.HasSuffix(out, "another has ended\n") {
		t.Errorf("drain of the target says %q", out)
	}
	if err := another.Wait(); err != nil {
		t.Errorf("its process ended with %v", err)
	}
}
