// Command lanes measures how the rate of a worker grows with the requests that it serves at a time.
//
//	go run ./bench/lanes [-lanes 1,2,4] [-modes off,auto] [-seconds 3] [-args "--threads 1"]
//
// Every lane asks the golden prompts one after the other, each lane from another one on; rates are tokens of all lanes
// a second of wall time, prompts included, and the texts of all lanes must be those of one.
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
	"sync"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

func main() {
	lanes := flag.String("lanes", "1,2,4", "requests at a time, separated by commas")
	modes := flag.String("modes", "off,auto", "off, auto, chain or tree, separated by commas")
	seconds := flag.Float64("seconds", 3, "time of each measurement")
	args := flag.String("args", "", "more flags of tandem serve")
	flag.Parse()
	if err := run(context.Background(), strings.Split(*lanes, ","), strings.Split(*modes, ","), *seconds,
		strings.Fields(*args)); err != nil {
		report.Exit(err)
	}
}

var modeOf = map[string]tandemv1.SpeculationMode{
	"off": tandemv1.SpeculationMode_SPECULATION_MODE_OFF, "auto": tandemv1.SpeculationMode_SPECULATION_MODE_AUTO,
	"chain": tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, "tree": tandemv1.SpeculationMode_SPECULATION_MODE_TREE,
}

func run(ctx context.Context, lanes, modes []string, seconds float64, args []string) error {
	cases, err := report.Cases()
	if err != nil {
		return err
	}
	target, stop, err := report.DemoTarget(ctx, args)
	if err != nil {
		return err
	}
	defer stop()

	alone := make([][]int32, len(cases))
	for i, g := range cases {
		if alone[i], err = ask(ctx, target, g, tandemv1.SpeculationMode_SPECULATION_MODE_OFF); err != nil {
			return err
		}
	}
	fmt.Println("# Requests at a time\n\n" + report.Machine())
	table := &report.Table{Title: "Tokens a second of all", Header: append([]string{"mode"}, lanes...)}
	for _, name := range modes {
		mode, ok := modeOf[name]
		if !ok {
			return fmt.Errorf("-modes: %q is none of off, auto, chain, tree", name)
		}
		row := []any{name}
		for _, text := range lanes {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 {
				return fmt.Errorf("-lanes: %q is no number of requests", text)
			}
			rate, err := measure(ctx, target, cases, alone, mode, n, seconds)
			if err != nil {
				return err
			}
			row = append(row, rate)
		}
		table.Add(row...)
	}
	table.Write(os.Stdout)
	return nil
}

// measure returns the rate of n lanes.
func measure(ctx context.Context, target tandemv1.TargetServiceClient, cases []report.Case, alone [][]int32,
	mode tandemv1.SpeculationMode, n int, seconds float64) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tokens, errs := make([]int, n), make([]error, n)
	var wait sync.WaitGroup
	start := time.Now()
	for lane := range n {
		wait.Go(func() {
			for i := lane * len(cases) / n; time.Since(start).Seconds() < seconds; i++ {
				got, err := ask(ctx, target, cases[i%len(cases)], mode)
				if err == nil && !slices.Equal(got, alone[i%len(alone)]) {
					err = fmt.Errorf("text %d is another one with %d lanes", i%len(cases), n)
				}
				if errs[lane] = err; err != nil {
					cancel()
					return
				}
				tokens[lane] += len(got)
			}
		})
	}
	wait.Wait()
	total := 0
	for _, t := range tokens {
		total += t
	}
	return float64(total) / time.Since(start).Seconds(), errors.Join(errs...)
}

func ask(ctx context.Context, target tandemv1.TargetServiceClient, g report.Case,
	mode tandemv1.SpeculationMode) ([]int32, error) {
	stream, err := target.Decode(ctx, &tandemv1.DecodeRequest{
		RequestId: "bench", PromptTokens: g.IDs, MaxTokens: int32(len(g.Greedy)),
		StopTokens: g.Greedy[len(g.Greedy)-1:], TopLogprobs: -1, Speculation: &tandemv1.Speculation{Mode: mode},
	})
	if err != nil {
		return nil, err
	}
	var tokens []int32
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return tokens, nil
		}
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, message.GetCommitted().GetTokens()...)
	}
}
