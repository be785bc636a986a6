package e2e

import (
	"cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// card is one that stands in for a graphics card: the engine program beside its library, and its name as a device.
type card struct{ engine, device string }

// aCard is the card whose library TANDEM_ENGINE_LIB names, or the emulated one of native/build.
func aCard(t *testing.T) card {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	library := os.Getenv("TANDEM_ENGINE_LIB")
	if library == "" {
		library = filepath.Join(root, "native", "build", "libtandem_emu.so")
	}
	return cardOf(t, library, "make test-native builds the emulated one")
}

// cardOf is the first card of a library, which somebody may have built.
func cardOf(t *testing.T, library, how string) card {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(library); err != nil {
		t.Skipf("no library of a card: %v (%s)", err, how)
	}
	name, found := strings.CutPrefix(strings.TrimSuffix(filepath.Base(library), ".so"), "libtandem_")
	if !found || name == "cpu" {
		t.Skipf("%s is no card's", library)
	}
	dir := t.TempDir()
	for file, to := range map[string]string{filepath.Base(library): library,
		"libtandem_cpu.so": filepath.Join(root, "bin", "libtandem_cpu.so")} {
		if err := os.Symlink(to, filepath.Join(dir, file)); err != nil {
			t.Fatal(err)
		}
	}
	// The engine program looks for libraries beside the file that it is, so a link to it would not do.
	program, err := os.ReadFile(filepath.Join(root, "bin", "tandem-engine"))
	if err != nil {
		t.Fatal(err)
	}
	engine := filepath.Join(dir, "tandem-engine")
	if err := os.WriteFile(engine, program, 0o755); err != nil {
		t.Fatal(err)
	}
	return card{engine, name + ":0"}
}

// contractOf is the contract id that a reply states.
func contractOf(t *testing.T, r client.Reply) string {
	t.Helper()
	var body struct{ Usage struct{ Contract string } }
	if err := json.Unmarshal(r.Raw, &body); err != nil || body.Usage.Contract == "" {
		t.Fatalf("no contract in %s: %v", r.Raw, err)
	}
	return body.Usage.Contract
}

// TestProcessorAndCardOfADemonstration: the demonstration target with its first layers on the processor and the others
// on a card, with its draft: plain, chain, tree and auto give one text, greedy and sampled, and this text and contract
// are the same where the card's stage is a worker of its own. The contract is not that of a processor alone.
func TestProcessorAndCardOfADemonstration(t *testing.T) {
	if device != "" {
		t.Skip("has a card of its own")
	}
	needPrograms(t)
	k := aCard(t)
	trio := func(args ...string) *client.Client {
		t.Helper()
		return client.New(launch(t, 2*time.Minute, cluster.Options{Args: append([]string{"--demo", "--threads", "1",
			"--engine", k.engine, "--target-layer-split", "5,3"}, args...)}).HTTP)
	}
	together := trio("--target-devices", "cpu,"+k.device)
	stage, err := cluster.Stage("2/2", "--threads", "1", "--engine", k.engine, "--device", k.device,
		"--target-layer-split", "5,3")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, "the stage", stage) })
	apart := trio("--target-stages", stage.Address())
	rowsGo(t, together, "memory")
	rowsGo(t, apart, "memory")

	_, processor := demo(t, "--threads", "1")
	cases := golden(t)
	short, long := cases[0].IDs, cases[36].IDs
	if len(long) <= 64 { // a piece of more has the card's arithmetic of prompts
		t.Fatalf("the long prompt has %d tokens", len(long))
	}
	drafted := map[string]int{}
	for what, r := range map[string]client.Request{
		"greedy":                 {Prompt: short, MaxTokens: 12},
		"sampled":                {Prompt: short, MaxTokens: 12, Temperature: 1.2, Seed: seed(3)},
		"greedy, a long prompt":  {Prompt: long, MaxTokens: 10},
		"sampled, a long prompt": {Prompt: long, MaxTokens: 10, Temperature: 1.2, Seed: seed(4)},
	} {
		want := generate(t, together, r, client.Speculation{Mode: "off"})
		for _, s := range []client.Speculation{{Mode: "chain"}, {Mode: "tree", Budget: 22}, {Mode: "auto"}} {
			got := generate(t, together, r, s)
			if got.Text != want.Text || got.Finish != want.Finish || contractOf(t, got) != contractOf(t, want) {
				t.Errorf("%s, %s: %q (%s)\nplain: %q (%s)", what, name(s), got.Text, got.Finish, want.Text, want.Finish)
			}
			drafted[s.Mode] += got.Usage.Timings.AcceptedTokens
		}
		got := generate(t, apart, r, client.Speculation{Mode: "tree", Budget: 8})
		if got.Text != want.Text || got.Finish != want.Finish || contractOf(t, got) != contractOf(t, want) {
			t.Errorf("%s, a stage apart: %q (%s), contract %s\none worker: %q (%s), contract %s", what, got.Text, got.Finish,
				contractOf(t, got), want.Text, want.Finish, contractOf(t, want))
		}
		if alone := generate(t, processor, r, client.Speculation{Mode: "off"}); contractOf(t, alone) == contractOf(t, want) {
			t.Errorf("%s: contract %s is that of the processor alone", what, contractOf(t, want))
		}
	}
	for _, mode := range []string{"chain", "tree"} {
		if drafted[mode] == 0 {
			t.Errorf("no token of a %s was accepted", mode)
		}
	}
}

// TestProcessorAndSimulatedCard: the demonstration target with its last layers, one of each kind, on a card of AMD,
// whose machine code a simulator runs, and the others on the processor. Plain, chain and tree give one text, greedy and
// sampled, which is also that of a card whose stage is a worker of its own. The simulator is some hundred times slower
// than a processor, so this is less than TestProcessorAndCardOfADemonstration.
func TestProcessorAndSimulatedCard(t *testing.T) {
	if device != "" {
		t.Skip("has a card of its own")
	}
	needPrograms(t)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	const how = "make test-amdsim builds it"
	simulator := filepath.Join(root, "native", "build", "libamdsim.so")
	if _, err := os.Stat(simulator); err != nil {
		t.Skipf("no simulator: %v (%s)", err, how)
	}
	k := cardOf(t, filepath.Join(root, "native", "build", "libtandem_hip.so"), how)
	const split = "6,2"
	t.Setenv("LD_PRELOAD", simulator)
	trio := func(args ...string) *client.Client {
		t.Helper()
		return client.New(launch(t, 2*time.Minute, cluster.Options{Args: append([]string{"--demo", "--threads", "1",
			"--engine", k.engine, "--target-layer-split", split}, args...)}).HTTP)
	}
	together := trio("--target-devices", "cpu,"+k.device)
	stage, err := cluster.Stage("2/2", "--threads", "1", "--engine", k.engine, "--device", k.device,
		"--target-layer-split", split)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, "the stage", stage) })
	apart := trio("--target-stages", stage.Address())

	table, err := together.Get(t.Context(), "/cluster")
	if err != nil {
		t.Fatal(err)
	}
	// The engine's process gets what is said to the simulator.
	if p := cmp.Or(os.Getenv("TANDEM_AMDSIM_PROCESSOR"), "gfx1100"); !strings.Contains(string(table), "simulated "+p) {
		t.Errorf("no stage is on a simulated %s: %s", p, table)
	}
	prompt := golden(t)[0].IDs
	drafted := 0
	for what, r := range map[string]client.Request{
		"greedy":  {Prompt: prompt, MaxTokens: 10},
		"sampled": {Prompt: prompt, MaxTokens: 10, Temperature: 1.2, Seed: seed(3)},
	} {
		want := generate(t, together, r, client.Speculation{Mode: "off"})
		for _, s := range []client.Speculation{{Mode: "chain"}, {Mode: "tree", Budget: 8}} {
			got := generate(t, together, r, s)
			if got.Text != want.Text || got.Finish != want.Finish || contractOf(t, got) != contractOf(t, want) {
				t.Errorf("%s, %s: %q (%s)\nplain: %q (%s)", what, name(s), got.Text, got.Finish, want.Text, want.Finish)
			}
			drafted += got.Usage.Timings.AcceptedTokens
		}
		got := generate(t, apart, r, client.Speculation{Mode: "off"})
		if got.Text != want.Text || got.Finish != want.Finish || contractOf(t, got) != contractOf(t, want) {
			t.Errorf("%s, a stage apart: %q (%s), contract %s\none worker: %q (%s), contract %s", what, got.Text, got.Finish,
				contractOf(t, got), want.Text, want.Finish, contractOf(t, want))
		}
	}
	if drafted == 0 {
		t.Error("no proposed token was accepted")
	}
}
