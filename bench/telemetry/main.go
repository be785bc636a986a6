// Command telemetry measures what tracing every request and a watched live page cost: the rate of decoding through HTTP
// and the processor time of all processes, against a cluster without traces that nobody looks at.
//
//	go run ./bench/telemetry [-rounds 12] [-starts 2] [-modes off,tree] [-requests 16] [-tokens 0] [-threads 1]
//	    [-most 0] [-out build/bench/telemetry.json]
//
// Three clusters of the demonstration models stand beside each other, of which one works at a time: two without traces,
// which show what differs between equal clusters, and one that sends all traces to a collector in this program. Blocks
// of the same requests follow each other in turns; each is compared with the block without traces of its round.
// Processor time counts some seconds after each block, too, in which spans are sent. Answers end where the model ends
// them, after some 55 tokens, or have as many tokens as -tokens says. With -most the run fails when the processor time
// that tracing, or a watched page, adds around the engines is above that share of all.
//
// Engines have one thread unless -threads says otherwise: two that wait for each other burn processor time whenever
// another program has one's processor. What gateway and workers take is shown apart: tracing and watching happen there,
// but for the spans of engine steps. Over all blocks it differs by some 10 µs a token between equal clusters, where the
// time of all processes differs by 100, so -most judges the sums.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
)

// options of a run.
type options struct {
	rounds, starts, requests, tokens, threads int
	modes                                     []string
	most                                      float64
}

// result is what is written as JSON.
type result struct {
	Machine string
	Rounds  int     `json:"rounds"`
	Starts  int     `json:"starts"`
	Answers int     `json:"tokens_per_answer"` // 0 = the model ends them
	Blocks  []block `json:"blocks"`
	Shares  []share `json:"shares"`
	Spans   float64 `json:"spans_per_request"`
}

// block is one measurement.
type block struct {
	Mode    string  `json:"mode"`
	Way     string  `json:"way"`
	Start   int     `json:"start"`
	Round   int     `json:"round"`
	Tokens  int     `json:"tokens"`
	Rate    float64 `json:"tokens_per_second"`
	Seconds float64 `json:"seconds"`
	// Processor time of all processes, and of gateway and workers without their engines.
	Processor float64 `json:"processor_us_per_token"`
	Around    float64 `json:"around_us_per_token"`
}

// share is what a way costs against the way "off": medians over the rounds, with the quartiles of processor time.
type share struct {
	Mode      string  `json:"mode"`
	Way       string  `json:"way"`
	Rate      float64 `json:"rate"`
	Processor float64 `json:"processor"`
	Lower     float64 `json:"processor_lower_quartile"`
	Upper     float64 `json:"processor_upper_quartile"`
	Tokens    float64 `json:"tokens_per_second"`
	TokenUS   float64 `json:"processor_us_per_token"`
	// Around is the share for gateway and workers alone, AddedUS what they take more for a token, AddedMS for a second.
	Around  float64 `json:"around"`
	AddedUS float64 `json:"around_added_us_per_token"`
	AddedMS float64 `json:"around_added_ms_per_second"`
	// SumUS and Sum compare the sums over all blocks with those of both clusters without traces: what gateway and workers
	// take more for a token, and its share of the processor time of all processes.
	SumUS float64 `json:"sum_added_us_per_token"`
	Sum   float64 `json:"sum_added_of_all"`
}

func main() {
	o := options{}
	flag.IntVar(&o.rounds, "rounds", 12, "rounds of blocks after each start")
	flag.IntVar(&o.starts, "starts", 2, "how often the clusters are started")
	flag.IntVar(&o.requests, "requests", 16, "requests of a block")
	flag.IntVar(&o.tokens, "tokens", 0, "tokens of an answer; 0 = until the model ends it")
	flag.IntVar(&o.threads, "threads", 1, "threads of each engine")
	modes := flag.String("modes", "off,tree", "off, chain, tree or auto, separated by commas")
	flag.Float64Var(&o.most, "most", 0, "largest share of processor time that tracing or a watched page may add; 0 = any")
	out := flag.String("out", "build/bench/telemetry.json", "file of results")
	flag.Parse()
	o.modes = strings.Split(*modes, ",")
	report.Main(func(ctx context.Context) (bool, error) { return run(ctx, o, *out) })
}

func run(ctx context.Context, o options, out string) (bool, error) {
	cases, err := short()
	if err != nil {
		return false, err
	}
	r := &result{Machine: report.Machine(), Rounds: o.rounds, Starts: o.starts, Answers: o.tokens}
	fmt.Println("# What looking costs\n\n" + r.Machine)
	for start := range o.starts {
		if err := r.measure(ctx, o, start, cases); err != nil {
			return false, err
		}
	}
	var problems []string
	for _, mode := range o.modes {
		for _, way := range ways {
			s := r.share(mode, way.name)
			r.Shares = append(r.Shares, s)
			if o.most > 0 && way.judged && s.Sum > o.most {
				problems = append(problems, fmt.Sprintf("%s, %s: %.2f %% of the processor time more", mode, way.name, 100*s.Sum))
			}
		}
	}
	r.print()
	return report.Judge(out, r, problems)
}

// short are the golden prompts that take little of a request's time: questions and functions in turns.
func short() ([]report.Case, error) {
	all, err := report.Cases()
	if err != nil {
		return nil, err
	}
	kinds := map[string][]report.Case{}
	for _, c := range all {
		kinds[c.Kind] = append(kinds[c.Kind], c)
	}
	var out []report.Case
	for i := range min(len(kinds["qa"]), len(kinds["fn"])) {
		out = append(out, kinds["qa"][i], kinds["fn"][i])
	}
	if len(out) == 0 {
		return nil, errors.New("there are no golden prompts of the kinds qa and fn")
	}
	return out, nil
}

// measure starts the clusters and runs all blocks of all rounds.
func (r *result) measure(ctx context.Context, o options, start int, cases []report.Case) error {
	sink, err := listen()
	if err != nil {
		return err
	}
	defer sink.close()
	sites := map[string]*site{}
	for _, name := range []string{siteOff, siteOther, siteTraced} {
		s, err := open(ctx, name, sink.endpoint, o.threads, cases)
		if err != nil {
			return err
		}
		defer s.close()
		sites[name] = s
	}
	requests := 0
	for round := range o.rounds + 1 { // the first warms up
		for _, mode := range o.modes {
			for i := range ways {
				// Another way is first in each round.
				w := ways[(i+round)%len(ways)]
				b, err := sites[w.site].run(ctx, w, mode, o)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", mode, w.name, err)
				}
				if w.sampled {
					requests += o.requests
				}
				if b.Start, b.Round = start, round; round > 0 {
					r.Blocks = append(r.Blocks, b)
				}
			}
		}
		fmt.Fprintf(os.Stderr, "start %d of %d, round %d of %d\n", start+1, o.starts, round, o.rounds)
	}
	r.Spans = float64(sink.count()) / float64(requests)
	return nil
}

// share compares the blocks of a way with those of the same rounds without traces.
func (r *result) share(mode, way string) share {
	type at struct{ start, round int }
	off := map[at]block{}
	for _, b := range r.Blocks {
		if b.Mode == mode && b.Way == ways[0].name {
			off[at{b.Start, b.Round}] = b
		}
	}
	var rates, processor, tokens, us, around, addedUS, addedMS []float64
	for _, b := range r.Blocks {
		if b.Mode != mode || b.Way != way {
			continue
		}
		base := off[at{b.Start, b.Round}]
		rates = append(rates, b.Rate/base.Rate)
		processor = append(processor, b.Processor/base.Processor)
		tokens, us = append(tokens, b.Rate), append(us, b.Processor)
		around, addedUS = append(around, b.Around/base.Around), append(addedUS, b.Around-base.Around)
		addedMS = append(addedMS, (b.Around-base.Around)*float64(b.Tokens)/1000/b.Seconds)
	}
	out := share{mode, way, quantile(rates, .5), quantile(processor, .5), quantile(processor, .25),
		quantile(processor, .75), quantile(tokens, .5), quantile(us, .5), quantile(around, .5), quantile(addedUS, .5),
		quantile(addedMS, .5), 0, 0}
	all, gateways := r.perToken(mode, ways[0].name, ways[1].name)
	_, own := r.perToken(mode, way)
	out.SumUS, out.Sum = own-gateways, (own-gateways)/all
	return out
}

// perToken is the processor time of all processes, and of those around the engines, over all blocks of some ways.
func (r *result) perToken(mode string, names ...string) (all, around float64) {
	tokens := 0.0
	for _, b := range r.Blocks {
		if b.Mode == mode && slices.Contains(names, b.Way) {
			n := float64(b.Tokens)
			tokens, all, around = tokens+n, all+n*b.Processor, around+n*b.Around
		}
	}
	return all / tokens, around / tokens
}

func (r *result) print() {
	table := &report.Table{Title: "Against the same requests without traces, medians over rounds",
		Header: []string{"speculation", "", "tokens/s", "µs/token", "rate", "processor time", "quartiles",
			"around engines", "added, µs/token", "added, ms/s", "sums: added, µs/token", "of all"}}
	for _, s := range r.Shares {
		table.Add(s.Mode, s.Way, s.Tokens, s.TokenUS, times(s.Rate), times(s.Processor),
			times(s.Lower)+" to "+times(s.Upper), times(s.Around), fmt.Sprintf("%.1f", s.AddedUS),
			fmt.Sprintf("%.2f", s.AddedMS), fmt.Sprintf("%.1f", s.SumUS), fmt.Sprintf("%.2f %%", 100*s.Sum))
	}
	table.Write(os.Stdout)
	fmt.Printf("\n%.1f spans a traced request; load %s at the end, %s\n", r.Spans, report.Load(),
		time.Now().UTC().Format("15:04 UTC"))
}

func times(v float64) string { return fmt.Sprintf("%.4f ×", v) }

// quantile of values, 0 for none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
