package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/services/workernode"
)

// patience is how long a test waits for what must come: nothing promises a time on a busy machine.
const patience = time.Minute

// start runs a worker program until the test ends and returns once it answers health checks.
func start(t *testing.T, program, socket string, args ...string) *exec.Cmd {
	t.Helper()
	address := "unix://" + socket
	cmd := exec.Command(program, append(args, "--listen", address, "--log-format", "console")...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	logged := make(chan struct{})
	go func() {
		defer close(logged)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if testing.Verbose() && os.Getenv("TANDEM_TEST_LOGS") != "" {
				t.Log(lines.Text())
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-logged
		if err := cmd.Wait(); err != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("%s ended with %v", filepath.Base(program), err)
		}
	})
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		health := workernode.HealthCmd{Address: address, Timeout: time.Second}
		if err = health.Run(); err == nil {
			return cmd
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not serve: %v", filepath.Base(program), err)
		}
	}
}

type goldenCase struct {
	Kind   string  `json:"kind"`
	IDs    []int32 `json:"ids"`
	Greedy []int32 `json:"greedy"`
}

// trio gives paths in the checkout and the golden cases of the demonstration models, or skips the test where programs
// are missing.
func trio(t *testing.T) (in func(path ...string) string, cases []goldenCase) {
	t.Helper()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	in = func(path ...string) string { return filepath.Join(append([]string{root}, path...)...) }
	for _, path := range []string{in("bin", "worker-target"), in("bin", "worker-draft"), in("bin", "tandem-engine"),
		in("bin", "libtandem_cpu.so")} {
		if _, err := os.Stat(path); err != nil {
			t.Skip("needs the programs in bin/: make build")
		}
	}
	if testing.Short() {
		t.Skip("starts processes")
	}
	data, err := os.ReadFile(in("tests", "testdata", "golden", "tandem-tiny-q4km.json"))
	if err != nil {
		t.Skip("needs the golden file: ", err)
	}
	var golden struct{ Cases []goldenCase }
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	return in, golden.Cases
}

// TestSlowTrio runs the demonstration models in processes: every mode gives the tokens of plain decoding, the plain
// ones are those of the golden file but for near ties.
func TestSlowTrio(t *testing.T) {
	in, cases := trio(t)
	// Socket paths are short: their length is limited to some hundred bytes.
	dir, err := os.MkdirTemp("", "trio")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	model := in("models", "tandem-tiny-target-q4_k_m.gguf")
	startDraft := func() *exec.Cmd {
		return start(t, in("bin", "worker-draft"), filepath.Join(dir, "d"), "--model",
			in("models", "tandem-tiny-draft-q8_0.gguf"), "--cache-dir", filepath.Join(dir, "cd"))
	}
	draft := startDraft()
	start(t, in("bin", "worker-target"), filepath.Join(dir, "t"), "--model", model, "--cache-dir",
		filepath.Join(dir, "ct"), "--draft-address", "unix://"+filepath.Join(dir, "d"))
	client := dialTrio(t, dir, time.Minute)
	run := func(m *tandemv1.DecodeRequest, on ...func(total int)) ([]int32, *tandemv1.Finished) {
		t.Helper()
		return client.run(t, m, on...)
	}
	client.awaitDraft(t, cases[0].IDs)

	same, total, accepted := 0, 0, map[string]int64{}
	for _, sampling := range []*tandemv1.Sampling{nil, {Temperature: new(float64), Seed: new(int64)}} {
		name := "greedy"
		if sampling != nil {
			*sampling.Temperature, *sampling.Seed = 0.7, 5
			name = "sampled"
		}
		for i, c := range cases {
			var plain []int32
			for _, mode := range modesInTurn(i + len(name)) {
				tokens, end := run(&tandemv1.DecodeRequest{
					RequestId: fmt.Sprint(mode.name, i), PromptTokens: c.IDs, MaxTokens: int32(len(c.Greedy)), TopLogprobs: -1,
					Sampling: sampling, Speculation: mode.spec,
				})
				accepted[mode.name] += end.Timings.AcceptedTokens
				if mode.name != "plain" {
					if !slices.Equal(tokens, plain) {
						t.Errorf("%s %s, prompt %d: %v, plain %v", name, mode.name, i, tokens, plain)
					}
					continue
				}
				plain = tokens
				if sampling == nil {
					total++
					if slices.Equal(tokens, c.Greedy) {
						same++
					}
				}
			}
		}
	}
	for _, mode := range trioModes[1:] {
		if accepted[mode.name] == 0 {
			t.Errorf("%s: no drafted token was accepted", mode.name)
		}
	}
	// The draft's process is killed in the middle of an answer and started again: same tokens, no pause,
	// speculation resumes.
	request := &tandemv1.DecodeRequest{
		PromptTokens: cases[0].IDs, MaxTokens: lossTokens, TopLogprobs: -1,
		Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF},
	}
	plain, _ := run(request)
	request.Speculation = &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN}
	killed, restarted := false, make(chan struct{})
	var gap time.Duration // longest pause of the output
	var last time.Time
	tokens, end := run(request, func(total int) {
		if !last.IsZero() {
			gap = max(gap, time.Since(last))
		}
		last = time.Now()
		if total > 300 && !killed {
			killed = true
			if err := draft.Process.Kill(); err != nil {
				t.Error(err)
			}
			go func() {
				defer close(restarted)
				startDraft()
			}()
		}
	})
	t.Logf("draft killed: longest pause %v, %v", gap, end.Timings)
	// A second is usual on a busy machine; one that waited for a draft that says nothing would stand still for half
	// a minute.
	if !slices.Equal(tokens, plain) || gap > 5*time.Second || !end.Timings.SpeculationDegraded {
		t.Errorf("draft killed: %d tokens of %d, equal %v, longest pause %v", len(tokens), len(plain),
			slices.Equal(tokens, plain), gap)
	}
	request.MaxTokens = 60
	for deadline := time.Now().Add(patience); ; {
		if _, end := run(request); end.Timings.AcceptedTokens > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the draft was not taken up again")
		}
	}
	testwait.For(t, restarted, "the draft runs again")
	t.Logf("%d of %d greedy texts are those of the golden file", same, total)
	if same < total/2 {
		t.Errorf("%d of %d greedy texts are those of the golden file", same, total)
	}
}

// lossTokens is a long answer, past the end token.
const lossTokens = 1500

type trioMode struct {
	name string
	spec *tandemv1.Speculation
}

var trioModes = []trioMode{
	{"plain", &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF}},
	{"chain", &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN}},
	{"tree", &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_TREE}},
	{"tree40", &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_TREE, Budget: 40}},
	{"lookup", &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP}},
	{"lookup8", &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP, Block: 8}},
	{"auto", nil},
}

// modesInTurn gives the modes for prompt i: plain and two of the others, which take turns. All for every prompt take
// minutes.
func modesInTurn(i int) []trioMode {
	others := trioModes[1:]
	return []trioMode{trioModes[0], others[2*i%len(others)], others[(2*i+1)%len(others)]}
}
