package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// TestStages: a target whose layers are spread over two engines gives the texts of one engine, however it speculates,
// greedy and sampled, from a cached prompt too, and when one of its engines is killed.
func TestStages(t *testing.T) {
	if device != "" {
		t.Skip("one card is not two devices")
	}
	_, whole := demo(t, "--threads", "1")
	cl, c := demo(t, "--threads", "1", "--target-devices", "cpu,cpu", "--target-layer-split", "5,3")
	sameTexts(t, whole, c, 5)

	want, err := whole.Do(t.Context(), longRequest())
	if err != nil {
		t.Fatal(err)
	}
	killed(t, c, want.Text, enginesOf(t, cl, 2)[1])
}

// TestStagesWithRoundedRows: with rows of half the bytes texts may be others, but they are the same however a request
// speculates, and the contract is another one.
func TestStagesWithRoundedRows(t *testing.T) {
	if device != "" {
		t.Skip("one card is not two devices")
	}
	_, c := demo(t, "--threads", "1", "--target-devices", "cpu,cpu", "--stage-row-type", "bf16")
	for i, g := range golden(t) {
		if i%8 != 0 {
			continue
		}
		request := client.Request{Prompt: g.IDs, MaxTokens: 40}
		plain := generate(t, c, request, client.Speculation{Mode: "off"})
		for _, s := range modesInTurn(i / 8) {
			if got := generate(t, c, request, s); got.Text != plain.Text {
				t.Errorf("case %d, %s: %q\nplain: %q", i, name(s), got.Text, plain.Text)
			}
		}
	}
	raw, err := c.Get(t.Context(), "/cluster")
	if err != nil || !strings.Contains(string(raw), "rows=bf16@4") {
		t.Errorf("/cluster does not name the border: %s, %v", raw, err)
	}
}

// mostGap is how long a stream may stand still when a stage is killed. Less than a second is usual on a machine with
// nothing else to do.
const mostGap = 20 * time.Second

// rowsGo compares the ways of hidden rows that /cluster shows.
func rowsGo(t *testing.T, c *client.Client, want ...string) {
	t.Helper()
	raw, err := c.Get(t.Context(), "/cluster")
	if err != nil {
		t.Fatal(err)
	}
	var page struct {
		Workers []struct {
			Role   string
			Stages []struct{ Rows string }
		}
	}
	if err := json.Unmarshal(raw, &page); err != nil {
		t.Fatal(err)
	}
	for _, w := range page.Workers {
		if w.Role != "target" {
			continue
		}
		var got []string
		for _, s := range w.Stages {
			got = append(got, s.Rows)
		}
		if want := append([]string{""}, want...); !slices.Equal(got, want) {
			t.Errorf("hidden rows go %q, want %q", got, want)
		}
	}
}

// TestStagesElsewhere: so does a target with stages in workers of their own, whose rows lie in memory or go straight
// from stage to stage, also when such a worker or its engine is killed.
func TestStagesElsewhere(t *testing.T) {
	if device != "" {
		t.Skip("one card is not two devices")
	}
	needPrograms(t)
	t.Run("memory", func(t *testing.T) { stagesElsewhere(t, "memory", nil) })
	t.Run("direct", func(t *testing.T) {
		stagesElsewhere(t, "direct", freePorts(t, "127.0.0.1", 2), "--stage-transport", "grpc")
	})
}

// stagesElsewhere runs two stages at ports, nil = at sockets, of which a cluster with more flags is the head.
func stagesElsewhere(t *testing.T, way string, ports []string, flags ...string) {
	_, whole := demo(t, "--threads", "1")
	var addresses []string
	var last *cluster.Joined
	for i, place := range []string{"2/3", "3/3"} {
		args := []string{"--threads", "1", "--target-layer-split", "3,3,2"}
		if ports != nil {
			args = append(args, "--listen", ports[i])
		}
		stage, err := cluster.Stage(place, args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { end(t, "stage "+place, stage) })
		addresses, last = append(addresses, stage.Address()), stage
	}
	if ports != nil {
		addresses = ports
	}
	cl := start(t, append([]string{"--demo", "--threads", "1", "--target-stages", strings.Join(addresses, ","),
		"--target-layer-split", "3,3,2"}, flags...)...)
	c := client.New(cl.HTTP)
	rowsGo(t, c, way, way)
	sameTexts(t, whole, c, 10)
	want, err := whole.Do(t.Context(), longRequest())
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"tandem-engine", "worker-target"} {
		pid := last.Find(program)
		if pid == 0 {
			t.Fatalf("the stage has no %s", program)
		}
		if got := killed(t, c, want.Text, pid); got.Gap > mostGap {
			t.Errorf("%s was killed, and the stream stood still for %v", program, got.Gap)
		}
	}
}

// sameTexts compares a cluster with one whose target is one engine, by every so-many-th golden prompt.
func sameTexts(t *testing.T, whole, c *client.Client, every int) {
	t.Helper()
	drafted := 0
	for i, g := range golden(t) {
		if i%every != 0 {
			continue
		}
		request := client.Request{Prompt: g.IDs, MaxTokens: len(g.Greedy) + 8}
		for _, temperature := range []float64{0, 0.8} {
			seed := int64(i)
			request.Temperature, request.Seed = temperature, &seed
			want := generate(t, whole, request, client.Speculation{Mode: "off"})
			for _, s := range []client.Speculation{{Mode: "off"}, {Mode: "chain"}, {Mode: "tree", Budget: 22}, {Mode: "auto"}} {
				got := generate(t, c, request, s)
				if got.Text != want.Text || got.Finish != want.Finish {
					t.Errorf("case %d, temperature %v, %s: %q (%s)\none engine: %q (%s)", i, temperature, name(s), got.Text,
						got.Finish, want.Text, want.Finish)
				}
				drafted += got.Usage.Timings.AcceptedTokens
			}
		}
	}
	if drafted == 0 {
		t.Error("no draft was accepted")
	}
}

// TestStagesWithoutFiles: stages that have no model file get their tensors from the head, before it has an engine, and
// the texts are those of one engine.
func TestStagesWithoutFiles(t *testing.T) {
	if device != "" {
		t.Skip("one card is not two devices")
	}
	_, whole := demo(t, "--threads", "1")
	needPrograms(t)
	registry := freePorts(t, "127.0.0.1", 1)[0]
	var addresses, files []string
	for _, place := range []string{"2/3", "3/3"} {
		file := filepath.Join(t.TempDir(), "stage.gguf")
		stage, err := cluster.Stage(place, "--threads", "1", "--target-layer-split", "3,3,2", "--gateway", registry,
			"--model-from", "auto", "--model", file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { end(t, "stage "+place, stage) })
		addresses, files = append(addresses, stage.Address()), append(files, file)
	}
	cl := start(t, "--demo", "--threads", "1", "--registry-listen", registry, "--target-stages",
		strings.Join(addresses, ","), "--target-layer-split", "3,3,2")
	sameTexts(t, whole, client.New(cl.HTTP), 20)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	all, err := os.Stat(filepath.Join(root, "models", "tandem-tiny-target-q4_k_m.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.Size() > all.Size()*2/3 {
			t.Errorf("the file of a stage has not only its tensors: %v, %v", info, err)
		}
	}
}
