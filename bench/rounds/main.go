// Command rounds shows where the time of a decode round goes, by kind of text and by mode, from the timings that
// worker-target reports: the whole round, the verify step (engine and the way there and back) and the wait for
// the draft.
//
//	go run ./bench/rounds [-rounds 3] [-modes off,lookup:4,lookup,chain:4,chain,tree:22,auto] [-kinds qa,tools,fn]
//		[-apart] [-args "--threads 1"]
//
// With -apart the target has one processor and one thread, the draft another one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/bench/report"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

func main() {
	rounds := flag.Int("rounds", 3, "times every prompt is asked in every mode")
	modes := flag.String("modes", "off,lookup,chain:4,chain,auto",
		"off, auto, lookup[:rows], chain[:block], tree[:budget], separated by commas")
	kinds := flag.String("kinds", "", "kinds of texts to ask, separated by commas (default: all)")
	apart := flag.Bool("apart", false, "hold target and draft to a processor each, with one thread")
	args := flag.String("args", "", "more flags of tandem serve")
	flag.Parse()
	err := run(context.Background(), *rounds, strings.Split(*modes, ","), *kinds, *apart, strings.Fields(*args))
	if err != nil {
		report.Exit(err)
	}
}

// sum is what all requests of one kind and mode took together.
type sum struct {
	requests, tokens, steps     int64
	decode, verify, wait, first float64 // milliseconds
}

func run(ctx context.Context, rounds int, modes []string, wanted string, apart bool,
	args []string) error {
	cases, err := report.Cases()
	if err != nil {
		return err
	}
	if wanted != "" {
		only := strings.Split(wanted, ",")
		cases = slices.DeleteFunc(cases, func(c report.Case) bool { return !slices.Contains(only, c.Kind) })
		if len(cases) == 0 {
			return fmt.Errorf("-kinds: no text is one of %s", wanted)
		}
	}
	target, stop, err := report.DemoTarget(ctx, apart, args)
	if err != nil {
		return err
	}
	defer stop()

	sums := map[string]*sum{}
	var kinds []string
	for range rounds {
		for _, g := range cases { // the modes alternate, so that a slow minute of the machine hits all of them
			for _, mode := range modes {
				speculation, err := parse(mode)
				if err != nil {
					return err
				}
				one, err := ask(ctx, target, g, speculation)
				if err != nil {
					return err
				}
				for _, kind := range []string{"all", g.Kind} {
					key := kind + " " + mode
					if sums[key] == nil {
						sums[key] = &sum{}
					}
					sums[key].add(one)
				}
			}
			if kind := g.Kind; len(kinds) == 0 || kinds[len(kinds)-1] != kind {
				kinds = append(kinds, kind)
			}
		}
	}

	fmt.Println("# Where a round's time goes\n\n" + report.Machine())
	seen := map[string]bool{}
	for _, kind := range append([]string{"all"}, kinds...) {
		if seen[kind] {
			continue
		}
		seen[kind] = true
		table := &report.Table{Title: "Texts: " + kind,
			Header: []string{"mode", "tokens/s", "tokens a round", "rounds a request", "round ms", "verify ms",
				"draft wait ms", "first token ms"}}
		for _, mode := range modes {
			s := sums[kind+" "+mode]
			steps := float64(s.steps)
			// Rates leave the first token out: it belongs to prefill.
			table.Add(mode, float64(s.tokens-s.requests)/s.decode*1e3, decimals(float64(s.tokens)/steps),
				decimals(steps/float64(s.requests)),
				decimals(s.decode/steps), decimals(s.verify/steps), decimals(s.wait/steps), decimals(s.first/float64(s.requests)))
		}
		table.Write(os.Stdout)
	}
	return nil
}

func decimals(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }

func (s *sum) add(o sum) {
	s.requests += o.requests
	s.tokens += o.tokens
	s.steps += o.steps
	s.decode += o.decode
	s.verify += o.verify
	s.wait += o.wait
	s.first += o.first
}

// parse reads a mode with its number: the rows of a lookup, the block of a chain, the budget of a tree.
func parse(mode string) (*tandemv1.Speculation, error) {
	name, number, _ := strings.Cut(mode, ":")
	n := 0
	if number != "" {
		var err error
		if n, err = strconv.Atoi(number); err != nil {
			return nil, fmt.Errorf("-modes: %q: %w", mode, err)
		}
	}
	s := &tandemv1.Speculation{}
	switch name {
	case "off":
		s.Mode = tandemv1.SpeculationMode_SPECULATION_MODE_OFF
	case "auto":
		s.Mode = tandemv1.SpeculationMode_SPECULATION_MODE_AUTO
	case "lookup":
		s.Mode, s.Block = tandemv1.SpeculationMode_SPECULATION_MODE_LOOKUP, int32(n)
	case "chain":
		s.Mode, s.Block = tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, int32(n)
	case "tree":
		s.Mode, s.Budget = tandemv1.SpeculationMode_SPECULATION_MODE_TREE, int32(n)
	default:
		return nil, fmt.Errorf("-modes: %q is none of off, auto, lookup[:rows], chain[:block], tree[:budget]", mode)
	}
	return s, nil
}

func ask(ctx context.Context, target tandemv1.TargetServiceClient, g report.Case,
	speculation *tandemv1.Speculation) (sum, error) {
	s := sum{requests: 1}
	stream, err := target.Decode(ctx, &tandemv1.DecodeRequest{
		RequestId: "bench", PromptTokens: g.IDs, MaxTokens: int32(len(g.Greedy)),
		StopTokens: g.Greedy[len(g.Greedy)-1:], TopLogprobs: -1, Speculation: speculation,
	})
	if err != nil {
		return s, err
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return s, nil
		}
		if err != nil {
			return s, err
		}
		s.tokens += int64(len(message.GetCommitted().GetTokens()))
		if t := message.GetFinished().GetTimings(); t != nil {
			s.steps, s.decode, s.verify, s.wait, s.first = t.VerifySteps, t.DecodeMs, t.VerifyMs, t.DraftWaitMs, t.TtftMs
		}
	}
}
