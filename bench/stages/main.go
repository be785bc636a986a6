// Command stages measures a target whose layers are spread over two engines, each held to a processor of its own,
// against one engine with all layers on one processor: reading a long prompt, piece by piece through both, and two
// requests at a time, whose steps take turns in them, against one.
//
//	go run ./bench/stages [-rounds 3] [-prompt 16384] [-tokens 400] [-split 4,4] [-out build/stages.json]
//
// Every text must be the one of the one engine.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// Aims of the measurements.
const (
	leastPrefill  = 1.7 // times the rate of reading a prompt with one engine
	leastTogether = 1.6 // times the rate of one request
)

// options of a run.
type options struct {
	rounds, prompt, tokens int
	split                  string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "how often everything is measured")
	flag.IntVar(&o.prompt, "prompt", 16384, "tokens of the prompt, about")
	flag.IntVar(&o.tokens, "tokens", 400, "tokens of an answer")
	flag.StringVar(&o.split, "split", "4,4", "layers of the two stages")
	out := flag.String("out", filepath.Join("build", "stages.json"), "file of results")
	flag.Parse()
	report.Main(func(ctx context.Context) (bool, error) {
		r, err := run(ctx, o)
		if err != nil {
			return false, err
		}
		return report.Judge(*out, r, r.problems())
	})
}

// results are what the file holds.
type results struct {
	Machine string `json:"machine"`
	// LoadAfter is the machine's load at the end.
	LoadAfter string    `json:"load_after"`
	Split     string    `json:"split"`
	Prefill   []prefill `json:"prefill"`
	// PrefillGain and TogetherGain are medians.
	PrefillGain  float64    `json:"prefill_gain"`
	Together     []together `json:"together"`
	TogetherGain float64    `json:"together_gain"`
	Compared     int        `json:"texts_compared"`
	Other        int        `json:"texts_that_differ"`
}

// prefill is one prompt, read by one engine and by two stages.
type prefill struct {
	Tokens   int     `json:"tokens"`
	OneMS    float64 `json:"one_engine_ms"`
	StagesMS float64 `json:"stages_ms"`
	Gain     float64 `json:"gain"`
}

// together are two requests over the stages, one after the other and at a time.
type together struct {
	Tokens  [2]int  `json:"tokens"` // of the answers
	ApartMS float64 `json:"apart_ms"`
	AtOnce  float64 `json:"at_once_ms"`
	Gain    float64 `json:"gain"`
}

func (r *results) problems() []string {
	var out []string
	if r.PrefillGain < leastPrefill {
		out = append(out, fmt.Sprintf("two stages read a prompt at %.2f times the rate of one engine, the aim is %.1f",
			r.PrefillGain, leastPrefill))
	}
	if r.TogetherGain < leastTogether {
		out = append(out, fmt.Sprintf("two requests have %.2f times the rate of one, the aim is %.1f", r.TogetherGain,
			leastTogether))
	}
	if r.Other > 0 {
		out = append(out, fmt.Sprintf("%d of %d texts are other ones than with one engine", r.Other, r.Compared))
	}
	return out
}

// layout is a cluster whose target has one engine or two.
type layout struct {
	*client.Client
	cluster *cluster.Cluster
}

// open starts a cluster of which each engine of the target is held to a processor of its own.
func open(ctx context.Context, stages int, args ...string) (*layout, error) {
	cl, err := report.Start(ctx, cluster.Options{Args: append([]string{"--demo", "--threads", "1"}, args...)})
	if err != nil {
		return nil, err
	}
	if err := pin(cl, stages); err != nil {
		cl.Close()
		return nil, err
	}
	return &layout{client.New(cl.HTTP), cl}, nil
}

// pin holds each engine of a cluster's target to a processor.
func pin(cl *cluster.Cluster, stages int) error {
	processors, err := report.Processors()
	if err != nil {
		return err
	}
	target := cl.Find("worker-target")
	var engines []int
	for _, p := range cl.Processes() {
		if p.Name == "tandem-engine" && p.Parent == target {
			engines = append(engines, p.PID)
		}
	}
	if len(engines) != stages || len(processors) < stages {
		return fmt.Errorf("%d engines of the target and %d processors for %d stages", len(engines), len(processors),
			stages)
	}
	slices.Sort(engines)
	for i, pid := range engines {
		if err := report.Hold(pid, processors[i]); err != nil {
			return err
		}
	}
	return nil
}

func run(ctx context.Context, o options) (*results, error) {
	one, err := open(ctx, 1)
	if err != nil {
		return nil, err
	}
	defer one.cluster.Close()
	two, err := open(ctx, 2, "--target-devices", "cpu,cpu", "--target-layer-split", o.split)
	if err != nil {
		return nil, err
	}
	defer two.cluster.Close()
	r := &results{Machine: report.Machine(), Split: o.split}
	fmt.Println("# Stages\n\n" + r.Machine)
	for range o.rounds {
		if err := errors.Join(r.read(ctx, o, one, two), r.decode(ctx, o, one, two)); err != nil {
			return nil, err
		}
	}
	r.PrefillGain = median(r.Prefill, func(p prefill) float64 { return p.Gain })
	r.TogetherGain = median(r.Together, func(t together) float64 { return t.Gain })
	r.LoadAfter = report.Load()
	table := &report.Table{Title: fmt.Sprintf("A prompt through two stages of %s layers, a processor each", o.split),
		Header: []string{"tokens", "one engine, ms", "stages, ms", "gain"}}
	for _, p := range r.Prefill {
		table.Add(p.Tokens, p.OneMS, p.StagesMS, p.Gain)
	}
	table.Write(os.Stdout)
	table = &report.Table{Title: "Two requests over those stages",
		Header: []string{"tokens", "one after the other, ms", "at once, ms", "gain"}}
	for _, t := range r.Together {
		table.Add(fmt.Sprintf("%d and %d", t.Tokens[0], t.Tokens[1]), t.ApartMS, t.AtOnce, t.Gain)
	}
	table.Write(os.Stdout)
	fmt.Printf("\n%d texts compared, load %s at the end\n", r.Compared, r.LoadAfter)
	return r, nil
}

// median of two values in the middle is the lower one.
func median[T any](all []T, of func(T) float64) float64 {
	var values []float64
	for _, a := range all {
		values = append(values, of(a))
	}
	slices.Sort(values)
	if len(values) == 0 {
		return 0
	}
	return values[(len(values)-1)/2]
}

var off = false

// endOfTurn is the id of <|im_end|> in the demonstration models: answers are as long as they may be.
const endOfTurn = "8162"

// ask streams an answer without drafts, of which nothing is cached.
func (l *layout) ask(ctx context.Context, prompt string, most int) (client.Reply, error) {
	return l.Stream(ctx, client.Request{Messages: []client.Message{{Role: "user", Content: prompt}}, MaxTokens: most,
		EnableThinking: &off, CachePrompt: &off, PFlash: map[string]any{"mode": "off"},
		LogitBias: map[string]int{endOfTurn: -100}, Speculation: &client.Speculation{Mode: "off"}}, nil)
}

// same compares a text with that of the one engine.
func (r *results) same(got, want client.Reply) {
	r.Compared++
	if got.Text != want.Text || got.Finish != want.Finish || want.Text == "" {
		r.Other++
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// read measures the first token of a long prompt that is new.
func (r *results) read(ctx context.Context, o options, one, two *layout) error {
	var b strings.Builder
	for n := 0; n < o.prompt; n += 12 {
		fmt.Fprintf(&b, "Function %s returns the sum of its arguments.\n", strings.ToLower(rand.Text()[:4]))
	}
	want, err := one.ask(ctx, b.String(), 8)
	if err != nil {
		return err
	}
	got, err := two.ask(ctx, b.String(), 8)
	if err != nil {
		return err
	}
	r.same(got, want)
	p := prefill{Tokens: got.Usage.PromptTokens, OneMS: milliseconds(want.First), StagesMS: milliseconds(got.First)}
	p.Gain = p.OneMS / p.StagesMS
	r.Prefill = append(r.Prefill, p)
	return nil
}

// decode measures two answers one after the other and at a time.
func (r *results) decode(ctx context.Context, o options, one, two *layout) error {
	prompts := []string{"Write a poem about the sea.", "Explain how a binary search works."}
	var want [2]client.Reply
	var t together
	start := time.Now()
	for i, p := range prompts {
		var err error
		if want[i], err = two.ask(ctx, p, o.tokens); err != nil {
			return err
		}
		t.Tokens[i] = want[i].Usage.CompletionTokens
	}
	t.ApartMS = milliseconds(time.Since(start))
	var got [2]client.Reply
	var failed [2]error
	var group sync.WaitGroup
	start = time.Now()
	for i, p := range prompts {
		group.Go(func() { got[i], failed[i] = two.ask(ctx, p, o.tokens) })
	}
	group.Wait()
	if err := errors.Join(failed[:]...); err != nil {
		return err
	}
	t.AtOnce = milliseconds(time.Since(start))
	t.Gain = t.ApartMS / t.AtOnce
	r.Together = append(r.Together, t)
	for i, p := range prompts {
		alone, err := one.ask(ctx, p, o.tokens)
		if err != nil {
			return err
		}
		r.same(want[i], alone)
		r.same(got[i], alone)
	}
	return nil
}
