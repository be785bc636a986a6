// Command served27 measures the served product on models of true shapes: it writes GGUF files with random weights,
// starts "tandem serve" on them and asks through HTTP. Speed depends on shapes, types and bytes, not on the values of
// weights. Only acceptance needs real models, so drafted rows show what a round costs when the draft is never right.
//
//	cmake --build native/build --target synthetic_gguf
//	go run ./bench/served27 -device cuda:0 -draft -dir /tmp/models -out build/served27.json
//	go run ./bench/served27 -target 0.8b -device cpu -tokens 32        # small enough for a laptop
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

type options struct {
	target, dir, device, generator, out string
	draft                               bool
	tokens, prompt, rounds              int
	parallel, only                      string
	args                                string
}

func main() {
	var o options
	flag.StringVar(&o.target, "target", "27b", "shape of the target: 27b, 0.8b")
	flag.StringVar(&o.dir, "dir", filepath.Join(os.TempDir(), "tandem-served"),
		"folder for the model files; kept for the next run")
	flag.StringVar(&o.device, "device", "cuda:0", "device of all engines")
	flag.StringVar(&o.generator, "generator", "native/build/synthetic_gguf", "program that writes the model files")
	flag.StringVar(&o.out, "out", "", "JSON file for the results")
	flag.BoolVar(&o.draft, "draft", false, "serve the 27B drafter, too, and measure drafted rounds")
	flag.IntVar(&o.tokens, "tokens", 128, "tokens of an answer")
	flag.IntVar(&o.prompt, "prompt", 1024, "tokens of a prompt")
	flag.IntVar(&o.rounds, "rounds", 3, "times every case is asked; the median counts")
	flag.StringVar(&o.parallel, "parallel", "1,4,8", "numbers of requests at a time, plain greedy")
	flag.StringVar(&o.only, "only", "",
		"cases to measure, by the start of their names, separated by commas (default: all)")
	flag.StringVar(&o.args, "args", "", "more flags of tandem serve")
	flag.Parse()
	if err := run(context.Background(), o); err != nil {
		report.Exit(err)
	}
}

// fields of a completion request beside prompt and length.
type fields map[string]any

// scenario is one way to ask.
type scenario struct {
	Name        string
	Speculation client.Speculation
	Fields      fields
}

var (
	plain       = client.Speculation{Mode: "off"}
	recommended = fields{"temperature": 0.7, "top_p": 0.8, "top_k": 20}
	nucleus     = fields{"temperature": 0.7, "top_p": 0.95}
	// wide: both limits keep most of a row, so that neither makes the other's work small.
	wide = fields{"temperature": 0.7, "top_p": 0.95, "top_k": 50000}
	// level: at this temperature rows of random weights are flat, and half of their mass is many tokens.
	level = fields{"temperature": 2, "top_p": 0.5}
)

func plainScenarios() []scenario {
	return []scenario{
		{"greedy", plain, nil},
		{"temperature", plain, fields{"temperature": 0.7}},
		{"top_k 20", plain, fields{"temperature": 0.7, "top_k": 20}},
		{"top_p 0.95", plain, nucleus},
		{"top_p 0.95 top_k 50000", plain, wide},
		{"level top_p 0.5", plain, level},
		{"min_p 0.05", plain, fields{"temperature": 0.7, "min_p": 0.05}},
		{"penalties", plain, fields{"temperature": 0.7, "repetition_penalty": 1.1, "presence_penalty": 0.5}},
		{"penalties top_p 0.95", plain, fields{"temperature": 0.7, "top_p": 0.95, "repetition_penalty": 1.1,
			"presence_penalty": 0.5}},
		{"logprobs 5", plain, fields{"logprobs": 5}},
		{"logprobs 5 top_p 0.95", plain, fields{"temperature": 0.7, "top_p": 0.95, "logprobs": 5}},
		{"recommended", plain, recommended},
	}
}

func draftedScenarios() []scenario {
	return []scenario{
		{"chain 8", client.Speculation{Mode: "chain", Block: 8}, nil},
		{"chain 16", client.Speculation{Mode: "chain", Block: 16}, nil},
		{"tree 15", client.Speculation{Mode: "tree", Budget: 15}, nil},
		// 16 rows, each of which a sampler chooses from.
		{"tree 15 top_p 0.95", client.Speculation{Mode: "tree", Budget: 15}, nucleus},
		{"tree 15 top_p 0.95 top_k 50000", client.Speculation{Mode: "tree", Budget: 15}, wide},
		{"tree 15 level top_p 0.5", client.Speculation{Mode: "tree", Budget: 15}, level},
		{"tree 22", client.Speculation{Mode: "tree", Budget: 22}, nil},
		{"tree 22 recommended", client.Speculation{Mode: "tree", Budget: 22}, recommended},
		{"auto", client.Speculation{Mode: "auto"}, nil},
		{"auto recommended", client.Speculation{Mode: "auto"}, recommended},
	}
}

// Result is one row of the results file. Rates leave the first token out: it belongs to prefill.
type Result struct {
	Name         string  `json:"name"`
	TokensPerSec float64 `json:"tokens_per_second"`
	RoundMs      float64 `json:"round_ms"`                // decode time over verify steps, as the client is told
	VerifyMs     float64 `json:"verify_ms,omitempty"`     // of a round, asked of the target directly
	DraftWaitMs  float64 `json:"draft_wait_ms,omitempty"` // likewise
	ToPlain      float64 `json:"to_plain"`                // round over a plain greedy token
	TTFTMs       float64 `json:"ttft_ms"`
}

// File is the results file.
type File struct {
	Version  string    `json:"version"`
	Machine  string    `json:"machine"`
	Device   string    `json:"device"`
	GPU      string    `json:"gpu,omitempty"`
	Target   string    `json:"target"`
	Taken    time.Time `json:"taken"`
	StartS   float64   `json:"start_s"`
	Cases    []Result  `json:"cases"`
	Parallel []struct {
		Requests     int     `json:"requests"`
		TokensPerSec float64 `json:"tokens_per_second"`
	} `json:"parallel"`
	LongPromptMs map[string]float64 `json:"prompt_ms"`
}

func run(ctx context.Context, o options) error {
	model, draft, err := models(o)
	if err != nil {
		return err
	}
	args := []string{model, "--device", o.device, "--max-ctx", "32768"}
	if o.draft {
		args = append(args, "--draft", draft)
	}
	args = append(args, strings.Fields(o.args)...)
	startCtx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cl, err := cluster.Start(startCtx, cluster.Options{Args: args})
	if err != nil {
		return err
	}
	defer cl.Close()
	c := client.New(cl.HTTP)
	target, hangUp, err := report.DialTarget(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = hangUp() }()

	file := File{
		Version: version(), Machine: report.Machine(), Device: o.device, GPU: gpu(), Target: o.target,
		Taken: time.Now().UTC(), StartS: cl.Ready.Seconds(), LongPromptMs: map[string]float64{},
	}
	all := plainScenarios()
	if o.draft {
		all = append(all, draftedScenarios()...)
	}
	for _, s := range all {
		if !wanted(o.only, s.Name) {
			continue
		}
		r, err := measure(ctx, c, target, o, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		if len(file.Cases) > 0 {
			r.ToPlain = r.RoundMs / file.Cases[0].RoundMs
		} else {
			r.ToPlain = 1
		}
		file.Cases = append(file.Cases, r)
	}
	for text := range strings.SplitSeq(o.parallel, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("-parallel: %q is no number of requests", text)
		}
		if !wanted(o.only, "parallel") {
			break
		}
		rate, err := together(ctx, c, o, n)
		if err != nil {
			return fmt.Errorf("%d requests at a time: %w", n, err)
		}
		file.Parallel = append(file.Parallel, struct {
			Requests     int     `json:"requests"`
			TokensPerSec float64 `json:"tokens_per_second"`
		}{n, rate})
	}
	if wanted(o.only, "prompt") {
		for _, n := range []int{512, 8192} {
			var all []float64
			for i := range o.rounds {
				reply, err := ask(ctx, c, prompt(n, uint32(100+i)), 2, scenario{Speculation: plain})
				if err != nil {
					return err
				}
				all = append(all, reply.Usage.Timings.PrefillMs)
			}
			file.LongPromptMs[strconv.Itoa(n)] = median(all)
		}
	}
	print(file)
	if o.out == "" {
		return nil
	}
	return report.WriteJSON(o.out, file)
}

func wanted(only, name string) bool {
	if only == "" {
		return true
	}
	for start := range strings.SplitSeq(only, ",") {
		if strings.HasPrefix(name, start) {
			return true
		}
	}
	return false
}

// models writes the model files that are not there yet.
func models(o options) (target, draft string, err error) {
	if o.draft && o.target != "27b" {
		return "", "", errors.New("-draft: there is a drafter of the 27b shape only")
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return "", "", err
	}
	one := func(shape string) (string, error) {
		path := filepath.Join(o.dir, "synthetic-"+shape+".gguf")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		part := path + ".part"
		cmd := exec.Command(o.generator, shape, part, strconv.Itoa(runtime.NumCPU()))
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("%s: %w", o.generator, err)
		}
		return path, os.Rename(part, path)
	}
	if target, err = one(o.target); err != nil || !o.draft {
		return target, "", err
	}
	draft, err = one(o.target + "-draft")
	return target, draft, err
}

// prompt has n tokens that do not repeat themselves, so that nothing is looked up: the synthetic vocabulary has a token
// a byte.
func prompt(n int, seed uint32) string {
	text := make([]byte, n)
	for i := range text {
		seed = seed*1664525 + 1013904223
		text[i] = byte('a' + seed>>24%26)
	}
	return string(text)
}

func ask(ctx context.Context, c *client.Client, text string, tokens int, s scenario) (client.Reply, error) {
	body := fields{"prompt": text, "max_tokens": tokens, "temperature": 0, "seed": 1, "speculation": s.Speculation}
	for k, v := range s.Fields {
		body[k] = v
	}
	raw, err := c.Post(ctx, "/v1/completions", body)
	if err != nil {
		return client.Reply{}, err
	}
	var reply client.Reply
	err = json.Unmarshal(raw, &struct{ Usage *client.Usage }{&reply.Usage})
	return reply, err
}

func measure(ctx context.Context, c *client.Client, target tandemv1.TargetServiceClient, o options,
	s scenario) (Result, error) {
	var rates, rounds, first []float64
	for i := range o.rounds + 1 {
		reply, err := ask(ctx, c, prompt(o.prompt, uint32(i)), o.tokens, s)
		if err != nil {
			return Result{}, err
		}
		t := reply.Usage.Timings
		if t.VerifySteps == 0 || t.DecodeMs == 0 {
			return Result{}, fmt.Errorf("the answer of %d tokens has no timings", reply.Usage.CompletionTokens)
		}
		if i == 0 {
			continue // warms up: graphs, clocks, prices of automatic speculation
		}
		rates = append(rates, float64(reply.Usage.CompletionTokens-1)/t.DecodeMs*1e3)
		rounds = append(rounds, t.DecodeMs/float64(t.VerifySteps))
		first = append(first, t.TTFTMs)
	}
	r := Result{Name: s.Name, TokensPerSec: median(rates), RoundMs: median(rounds), TTFTMs: median(first)}
	if s.Speculation.Mode == "off" {
		return r, nil
	}
	t, err := phases(ctx, target, o, s)
	if err != nil {
		return r, err
	}
	if steps := float64(t.GetVerifySteps()); steps > 0 {
		r.VerifyMs, r.DraftWaitMs = t.GetVerifyMs()/steps, t.GetDraftWaitMs()/steps
	}
	return r, nil
}

// phases asks the target without the gateway, for the timings that HTTP does not show. Sampling is greedy here.
func phases(ctx context.Context, target tandemv1.TargetServiceClient, o options,
	s scenario) (*tandemv1.Timings, error) {
	mode := map[string]tandemv1.SpeculationMode{
		"auto": tandemv1.SpeculationMode_SPECULATION_MODE_AUTO, "chain": tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN,
		"tree": tandemv1.SpeculationMode_SPECULATION_MODE_TREE,
	}[s.Speculation.Mode]
	ids := make([]int32, o.prompt)
	for i, b := range []byte(prompt(o.prompt, 99)) {
		ids[i] = int32(b)
	}
	stream, err := target.Decode(ctx, &tandemv1.DecodeRequest{
		RequestId: "bench", PromptTokens: ids, MaxTokens: int32(o.tokens), TopLogprobs: -1,
		Speculation: &tandemv1.Speculation{Mode: mode, Budget: int32(s.Speculation.Budget),
			Block: int32(s.Speculation.Block)},
	})
	if err != nil {
		return nil, err
	}
	var t *tandemv1.Timings
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, err
		}
		if f := message.GetFinished(); f != nil {
			t = f.GetTimings()
		}
	}
}

// together returns the tokens a second of n requests that start at the same time. Prompts are short and not counted:
// all tokens after the first are divided by the longest decoding time.
func together(ctx context.Context, c *client.Client, o options, n int) (float64, error) {
	replies, errs := make([]client.Reply, n), make([]error, n)
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() {
			replies[i], errs[i] = ask(ctx, c, prompt(64, uint32(1000+i)), o.tokens, scenario{Speculation: plain})
		})
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	tokens, slowest := 0, 0.0
	for _, r := range replies {
		tokens += r.Usage.CompletionTokens - 1
		slowest = max(slowest, r.Usage.Timings.DecodeMs)
	}
	return float64(tokens) / slowest * 1e3, nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// version is what the served programs say of themselves.
func version() string {
	root, err := cluster.Root()
	if err != nil {
		return ""
	}
	out, err := exec.Command(filepath.Join(root, "bin", "tandem"), "version").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// gpu names the cards of the machine, as the driver does; empty without one.
func gpu() string {
	out, err := exec.Command("nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem",
		"--format=csv,noheader").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

func print(f File) {
	fmt.Printf("# Served: synthetic %s on %s\n\n%s, version %s, ready after %.1f s\n", f.Target, f.Device,
		f.Machine, f.Version, f.StartS)
	if f.GPU != "" {
		fmt.Println("\n" + f.GPU)
	}
	table := &report.Table{Title: "One request",
		Header: []string{"case", "tokens/s", "round ms", "to plain", "verify ms", "draft wait ms", "first token ms"}}
	for _, r := range f.Cases {
		table.Add(r.Name, r.TokensPerSec, r.RoundMs, r.ToPlain, r.VerifyMs, r.DraftWaitMs, r.TTFTMs)
	}
	table.Write(os.Stdout)
	if len(f.Parallel) > 0 {
		table = &report.Table{Title: "Several at a time, plain greedy", Header: []string{"requests", "tokens/s of all"}}
		for _, p := range f.Parallel {
			table.Add(p.Requests, p.TokensPerSec)
		}
		table.Write(os.Stdout)
	}
	for _, n := range slices.Sorted(func(yield func(string) bool) {
		for k := range f.LongPromptMs {
			if !yield(k) {
				return
			}
		}
	}) {
		fmt.Printf("\nprompt of %s tokens: %.0f ms\n", n, f.LongPromptMs[n])
	}
}
