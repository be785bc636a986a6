// Command concurrency measures a worker that serves several requests at a time: the rate of all of them, the gaps
// between the tokens of streams while long prompts are read, and what prompts lose beside streams.
//
//	go run ./bench/concurrency [-requests 1,4,8,16] [-modes off,auto] [-seconds 3] [-rounds 3] [-gap 0]
//	    [-prompt 16384] [-before FOLDER] [-out build/bench/concurrency.json]
//
// With -before the programs in FOLDER are measured too, in turns with those in bin/, because figures taken at different
// times are not comparable. Every text must equal that of the same request alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/bench/report"
)

// options of a run.
type options struct {
	requests []int
	modes    []string
	seconds  float64
	rounds   int
	gap      int // --max-token-gap-ms
	prompt   int // tokens of long prompts
	before   string
}

// results are what is written as JSON: by programs ("before", "after"), in the order of rounds.
type results struct {
	Machine string
	GapMS   int                  `json:"max_token_gap_ms"`
	Prompt  int                  `json:"prompt_tokens"`
	Rates   map[string][]rate    `json:"rates"`
	Gaps    map[string][]gaps    `json:"gaps"`
	Prompts map[string][]prompts `json:"prompts"`
}

func main() {
	requests := flag.String("requests", "1,4,8,16", "requests at a time, separated by commas")
	modes := flag.String("modes", "off,auto", "off, auto, chain or tree, separated by commas")
	seconds := flag.Float64("seconds", 3, "time of each measurement")
	rounds := flag.Int("rounds", 3, "how often everything is measured")
	gap := flag.Int("gap", 0, "--max-token-gap-ms of the worker")
	prompt := flag.Int("prompt", 16384, "tokens of long prompts")
	before := flag.String("before", "", "folder of programs to compare with")
	out := flag.String("out", "build/bench/concurrency.json", "file of results")
	flag.Parse()
	o := options{modes: strings.Split(*modes, ","), seconds: *seconds, rounds: *rounds, gap: *gap,
		prompt: *prompt, before: *before}
	for _, text := range strings.Split(*requests, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > mostRequests {
			report.Exit(fmt.Errorf("-requests: %q is no number in 1..%d", text, mostRequests))
		}
		o.requests = append(o.requests, n)
	}
	if err := run(context.Background(), o, *out); err != nil {
		report.Exit(err)
	}
}

func run(ctx context.Context, o options, out string) error {
	cases, err := report.Cases()
	if err != nil {
		return err
	}
	r := &results{
		Machine: report.Machine(), GapMS: o.gap, Prompt: o.prompt, Rates: map[string][]rate{}, Gaps: map[string][]gaps{},
		Prompts: map[string][]prompts{},
	}
	programs := []string{"after"}
	if o.before != "" {
		programs = []string{"before", "after"}
	}
	var servers []*server
	for _, name := range programs {
		s, err := start(ctx, name, o, cases)
		if err != nil {
			return errors.Join(err, stopAll(servers))
		}
		servers = append(servers, s)
	}
	for range o.rounds {
		for _, s := range servers {
			err = errors.Join(err, s.measure(ctx, o, r))
		}
	}
	if err = errors.Join(err, stopAll(servers)); err != nil {
		return err
	}
	r.print(os.Stdout, o, programs)
	return report.WriteJSON(out, r)
}

func stopAll(servers []*server) error {
	for _, s := range servers {
		s.stop()
	}
	return nil
}
