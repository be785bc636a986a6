// Command telemetry measures what tracing every request and a watched live page cost: the rate of decoding through HTTP
// and the processor time of all processes, against a cluster without traces that nobody looks at.
//
//	go run ./bench/telemetry [-rounds 12] [-starts 2] [-modes off,tree] [-requests 16] [-tokens 0] [-threads 1]
//	    [-ways off,other,recorded,traced,page] [-most 0] [-out build/bench/telemetry.json]
//
// Three clusters of the demonstration models stand beside each other, of which one works at a time: two without traces,
// which show what differs between equal clusters, and one that sends all traces to a collector in this program. Blocks
// of the same requests follow each other in turns; each is compared with the block without traces of its round.
// With traces, processor time counts some seconds after each block, too, in which spans are sent. Answers end where the
// model ends them, after some 55 tokens, or have as many tokens as -tokens says. With -most the run fails when the
// processor time that tracing, or a watched page, adds around the engines is above that share of all. "off" and "page"
// share a cluster: -ways off,page starts that one alone. On a busy machine equal blocks differ by some per cent, in
// processor time too.
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
	ways                                      []way
	most                                      float64
}

// late reports whether some way costs something after its block.
func (o options) late() bool { return slices.ContainsFunc(o.ways, func(w way) bool { return w.late }) }

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
	// Processor time until the last token, and until the last span was sent, unless no way sends any.
	Soon costs `json:"processor_us_per_token"`
	Late costs `json:"processor_with_spans_us_per_token"`
}

// costs are processor times by process; of a token, in microseconds.
type costs struct {
	Engines float64 `json:"engines"`
	Gateway float64 `json:"gateway"`
	Target  float64 `json:"target"`
	Others  float64 `json:"others"`
}

func (c costs) around() float64 { return c.Gateway + c.Target + c.Others }

func (c costs) all() float64 { return c.around() + c.Engines }

// share is what a way costs against the way "off": medians over the rounds, with their quartiles.
type share struct {
	Mode      string `json:"mode"`
	Way       string `json:"way"`
	Rate      spread `json:"rate"`
	Processor spread `json:"processor"`
	Tokens    spread `json:"tokens_per_second"`
	TokenUS   spread `json:"processor_us_per_token"`
	// What gateway, target and both with the other workers take more for a token, and the latter for a second.
	GatewayUS spread `json:"gateway_added_us_per_token"`
	TargetUS  spread `json:"target_added_us_per_token"`
	AroundUS  spread `json:"around_added_us_per_token"`
	AroundMS  spread `json:"around_added_ms_per_second"`
	// AroundOfAll is AroundUS as a share of the processor time of all processes.
	AroundOfAll spread `json:"around_added_of_all"`
	// SumUS and Sum compare the sums over all blocks with those of both clusters without traces: what gateway and workers
	// take more for a token, and its share of the processor time of all processes.
	SumUS float64 `json:"sum_added_us_per_token"`
	Sum   float64 `json:"sum_added_of_all"`
}

// spread is a median with its quartiles.
type spread struct {
	Lower  float64 `json:"lower_quartile"`
	Median float64 `json:"median"`
	Upper  float64 `json:"upper_quartile"`
}

func spreadOf(values []float64) spread {
	return spread{quantile(values, .25), quantile(values, .5), quantile(values, .75)}
}

func main() {
	o := options{}
	flag.IntVar(&o.rounds, "rounds", 12, "rounds of blocks after each start")
	flag.IntVar(&o.starts, "starts", 2, "how often the clusters are started")
	flag.IntVar(&o.requests, "requests", 16, "requests of a block")
	flag.IntVar(&o.tokens, "tokens", 0, "tokens of an answer; 0 = until the model ends it")
	flag.IntVar(&o.threads, "threads", 1, "threads of each engine")
	modes := flag.String("modes", "off,tree", "off, chain, tree or auto, separated by commas")
	chosen := flag.String("ways", "", "of off, other, recorded, traced and page, separated by commas, off among them; "+
		"empty = all")
	flag.Float64Var(&o.most, "most", 0, "largest share of processor time that tracing or a watched page may add; 0 = any")
	out := flag.String("out", "build/bench/telemetry.json", "file of results")
	flag.Parse()
	o.modes = strings.Split(*modes, ",")
	report.Main(func(ctx context.Context) (bool, error) {
		var err error
		if o.ways, err = choose(*chosen); err != nil {
			return false, err
		}
		return run(ctx, o, *out)
	})
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
		for _, way := range o.ways {
			s := r.share(mode, way)
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
	for _, w := range o.ways {
		name := w.site
		if sites[name] != nil {
			continue
		}
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
			for i := range o.ways {
				// Another way is first in each round.
				w := o.ways[(i+round)%len(o.ways)]
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
	r.Spans = float64(sink.count()) / float64(max(1, requests))
	return nil
}

// share compares the blocks of a way with those of the same rounds without traces.
func (r *result) share(mode string, w way) share {
	type at struct{ start, round int }
	off := map[at]block{}
	for _, b := range r.Blocks {
		if b.Mode == mode && b.Way == ways[0].name {
			off[at{b.Start, b.Round}] = b
		}
	}
	var rates, processor, tokens, us, gateway, target, around, ms, ofAll []float64
	for _, b := range r.Blocks {
		if b.Mode != mode || b.Way != w.name {
			continue
		}
		base := off[at{b.Start, b.Round}]
		now, before := b.of(w), base.of(w)
		added := now.around() - before.around()
		rates = append(rates, b.Rate/base.Rate)
		processor = append(processor, now.all()/before.all())
		tokens, us = append(tokens, b.Rate), append(us, now.all())
		gateway, target = append(gateway, now.Gateway-before.Gateway), append(target, now.Target-before.Target)
		around, ms = append(around, added), append(ms, added*float64(b.Tokens)/1000/b.Seconds)
		ofAll = append(ofAll, added/before.all())
	}
	out := share{mode, w.name, spreadOf(rates), spreadOf(processor), spreadOf(tokens), spreadOf(us), spreadOf(gateway),
		spreadOf(target), spreadOf(around), spreadOf(ms), spreadOf(ofAll), 0, 0}
	base := r.perToken(mode, w, ways[0].name, ways[1].name)
	out.SumUS = r.perToken(mode, w, w.name).around() - base.around()
	out.Sum = out.SumUS / base.all()
	return out
}

// of is what a block costs where it is compared with one of a way.
func (b block) of(w way) costs {
	if w.late {
		return b.Late
	}
	return b.Soon
}

// perToken is the processor time of a token over all blocks of some ways, as w is judged.
func (r *result) perToken(mode string, w way, names ...string) (sum costs) {
	tokens := 0.0
	for _, b := range r.Blocks {
		if b.Mode == mode && slices.Contains(names, b.Way) {
			n, c := float64(b.Tokens), b.of(w)
			tokens += n
			sum = costs{sum.Engines + n*c.Engines, sum.Gateway + n*c.Gateway, sum.Target + n*c.Target, sum.Others + n*c.Others}
		}
	}
	return costs{sum.Engines / tokens, sum.Gateway / tokens, sum.Target / tokens, sum.Others / tokens}
}

func (r *result) print() {
	of := func(s spread, format string) string {
		return fmt.Sprintf(format+" ("+format+" to "+format+")", s.Median, s.Lower, s.Upper)
	}
	table := &report.Table{Title: "Against the same requests without traces, medians over rounds (and quartiles)",
		Header: []string{"speculation", "", "tokens/s", "rate, ×", "processor µs/token", "processor, ×",
			"around engines: added ms/s", "µs/token", "gateway's", "target's", "of all, %", "sums: added, µs/token",
			"of all"}}
	for _, s := range r.Shares {
		all := spread{100 * s.AroundOfAll.Lower, 100 * s.AroundOfAll.Median, 100 * s.AroundOfAll.Upper}
		table.Add(s.Mode, s.Way, s.Tokens.Median, of(s.Rate, "%.4f"), s.TokenUS.Median, of(s.Processor, "%.4f"),
			fmt.Sprintf("%.2f", s.AroundMS.Median), of(s.AroundUS, "%.1f"), of(s.GatewayUS, "%.1f"),
			of(s.TargetUS, "%.1f"), of(all, "%.2f"), fmt.Sprintf("%.1f", s.SumUS), fmt.Sprintf("%.2f %%", 100*s.Sum))
	}
	table.Write(os.Stdout)
	fmt.Printf("\n%.1f spans a traced request; load %s at the end, %s\n", r.Spans, report.Load(),
		time.Now().UTC().Format("15:04 UTC"))
}

// quantile of values, 0 for none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
