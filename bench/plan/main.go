// Command plan compares what tandem plan predicts for layouts on this machine's processor with what tandem serve then
// reaches, by HTTP: one engine and two stages, without a draft and with chains of a draft.
//
//	go run ./bench/plan [-rounds 3] [-tokens 300] [-device cpu] [-out build/plan.json]
//
// The rig is measured first (tandem probe). The tokens that a round keeps are no prediction: they are taken from the
// answers and stated to the plan (--accepted).
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/bench/report"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// within is the aim: predictions are at most so far from what is measured.
const within = 0.25

type options struct {
	rounds, tokens, block       int
	device, split, model, draft string
	programs, threads, rig      string
}

func main() {
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "answers of each kind, of which the median counts")
	flag.IntVar(&o.tokens, "tokens", 300, "tokens of an answer")
	flag.IntVar(&o.block, "block", 16, "tokens of the draft's block")
	flag.StringVar(&o.device, "device", "cpu", "device of all engines")
	flag.StringVar(&o.split, "split", "4,4", "layers of the two stages")
	flag.StringVar(&o.programs, "programs", "bin", "folder of the programs")
	flag.StringVar(&o.model, "model", filepath.Join("models", "tandem-tiny-target-q4_k_m.gguf"), "target")
	flag.StringVar(&o.draft, "draft", filepath.Join("models", "tandem-tiny-draft-q8_0.gguf"), "draft")
	flag.StringVar(&o.threads, "threads", "0", "CPU threads of engines")
	flag.StringVar(&o.rig, "rig", "", "rig that was measured earlier; default: it is measured")
	out := flag.String("out", filepath.Join("build", "plan.json"), "file of results")
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
	Machine string          `json:"machine"`
	Before  string          `json:"load_before"`
	After   string          `json:"load_after"`
	Rig     json.RawMessage `json:"rig"`
	Layouts []compared      `json:"layouts"`
}

// compared is one figure of one layout.
type compared struct {
	Layout    string  `json:"layout"`
	Figure    string  `json:"figure"`
	Predicted float64 `json:"predicted"`
	Measured  float64 `json:"measured"`
	Ratio     float64 `json:"predicted_of_measured"`
	Kept      float64 `json:"tokens_kept,omitempty"` // of a round, measured
}

func (r *results) add(layout, figure string, predicted, measured, kept float64) {
	r.Layouts = append(r.Layouts, compared{layout, figure, predicted, measured, predicted / measured, kept})
}

func (r *results) problems() (out []string) {
	for _, c := range r.Layouts {
		if math.Abs(c.Ratio-1) > within {
			out = append(out, fmt.Sprintf("%s, %s: predicted %.4g, measured %.4g: %.2f times, the aim is within %.0f %%",
				c.Layout, c.Figure, c.Predicted, c.Measured, c.Ratio, 100*within))
		}
	}
	return out
}

// predictions are the part of a plan that is compared.
type predictions struct {
	Best struct {
		Predicted struct {
			Plain float64 `json:"plain_1k_tokens_s"`
			Draft float64 `json:"draft_1k_tokens_s"`
			First float64 `json:"first_token_4k_s"`
		}
	}
}

func run(ctx context.Context, o options) (*results, error) {
	r := &results{Machine: report.Machine(), Before: report.Load()}
	dir, err := os.MkdirTemp("", "tandem-plan")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	rig := o.rig
	if rig == "" {
		rig = filepath.Join(dir, "rig.json")
		if _, err := tandem(ctx, o, "probe", "--model", o.model, "--device", o.device, "--threads", o.threads, "--out",
			rig); err != nil {
			return nil, err
		}
	}
	if r.Rig, err = os.ReadFile(rig); err != nil {
		return nil, err
	}
	for _, l := range []struct{ devices, split string }{{o.device, ""}, {o.device + "," + o.device, o.split}} {
		if err := r.layout(ctx, o, rig, l.devices, l.split); err != nil {
			return nil, err
		}
	}
	r.After = report.Load()
	fmt.Println("# Plans and what is reached\n\n" + r.Machine)
	table := &report.Table{Title: "Load " + r.Before + " before, " + r.After + " after",
		Header: []string{"layout", "figure", "predicted", "measured", "ratio", "tokens kept"}}
	for _, c := range r.Layouts {
		table.Add(c.Layout, c.Figure, c.Predicted, c.Measured, c.Ratio, c.Kept)
	}
	table.Write(os.Stdout)
	return r, nil
}

// tandem runs a command of the program and returns what it prints.
func tandem(ctx context.Context, o options, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(o.programs, "tandem"), args...)
	var out, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failed
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("tandem %s: %w: %s", args[0], err, &failed)
	}
	return out.Bytes(), nil
}

// plan asks for the predictions of a layout.
func plan(ctx context.Context, o options, rig, devices, split string, kept float64) (*predictions, error) {
	args := []string{"plan", o.model, "--draft", o.draft, "--rig", rig, "--json", "--on", devices, "--draft-on",
		o.device, "--accepted", strconv.FormatFloat(kept, 'g', 6, 64), "--tree-rows",
		strconv.Itoa(o.block)}
	if split != "" {
		args = append(args, "--split", split)
	}
	text, err := tandem(ctx, o, args...)
	if err != nil {
		return nil, err
	}
	p := &predictions{}
	return p, json.Unmarshal(text, p)
}

var off = false

// endOfTurn is the id of <|im_end|> in the demonstration models: answers are as long as they may be.
const endOfTurn = "8162"

// answers are medians of some answers.
type answers struct{ rate, kept float64 }

// layout serves one layout and compares it.
func (r *results) layout(ctx context.Context, o options, rig, devices, split string) error {
	args := []string{o.model, "--draft", o.draft, "--draft-device", o.device, "--threads", o.threads}
	if split == "" {
		args = append(args, "--target-device", devices)
	} else {
		args = append(args, "--target-devices", devices, "--target-layer-split", split)
	}
	cl, err := report.Start(ctx, cluster.Options{Args: args, Programs: o.programs})
	if err != nil {
		return err
	}
	defer cl.Close()
	c := client.New(cl.HTTP)
	ask := func(prompt string, tokens int, s *client.Speculation) (client.Reply, error) {
		return c.Stream(ctx, client.Request{Messages: []client.Message{{Role: "user", Content: prompt}}, MaxTokens: tokens,
			EnableThinking: &off, CachePrompt: &off, PFlash: map[string]any{"mode": "off"},
			LogitBias: map[string]int{endOfTurn: -100}, Speculation: s}, nil)
	}
	rate := func(s *client.Speculation) (answers, error) {
		var rates, kept []float64
		for i := range o.rounds {
			reply, err := ask(fmt.Sprintf("Write a Go function that adds %d numbers, then explain it.", i+2), o.tokens, s)
			if err != nil {
				return answers{}, err
			}
			rates, kept = append(rates, reply.Usage.Timings.DecodeTokensPerSec), append(kept,
				reply.Usage.Timings.AcceptLength)
		}
		return answers{median(rates), median(kept)}, nil
	}
	plain, err := rate(&client.Speculation{Mode: "off"})
	if err != nil {
		return err
	}
	chain, err := rate(&client.Speculation{Mode: "chain", Budget: o.block - 1})
	if err != nil {
		return err
	}
	var firsts []float64
	for i := range o.rounds {
		var b strings.Builder
		for n := range 4096 / 12 {
			fmt.Fprintf(&b, "Function f%d%d returns the sum of its arguments.\n", i, n)
		}
		reply, err := ask(b.String(), 2, &client.Speculation{Mode: "off"})
		if err != nil {
			return err
		}
		timings := reply.Usage.Timings
		// The plan is for 4,096 tokens; prompts of about as many take time in proportion.
		firsts = append(firsts, timings.TTFTMs/1000*4096/float64(reply.Usage.PromptTokens))
	}
	kept := min(max(chain.kept, 1), float64(o.block))
	p, err := plan(ctx, o, rig, devices, split, kept)
	if err != nil {
		return err
	}
	name := devices
	if split != "" {
		name += " " + split
	}
	f := p.Best.Predicted
	r.add(name, "plain, tokens/s", f.Plain, plain.rate, 0)
	r.add(name, "chain, tokens/s", f.Draft, chain.rate, kept)
	r.add(name, "first token of 4,096, s", f.First, median(firsts), 0)
	return nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[(len(values)-1)/2]
}
