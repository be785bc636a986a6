// Command streams opens many event streams at once on a cluster of scripted engines and holds the transport to its
// limits: how late events are, how much memory the gateway takes, how much processor time a token costs.
//
//	go run ./bench/streams [-streams 200] [-rate 50] [-seconds 20]
//
// Every token is an event. Token i of a stream is due i/rate after its first token; an event's lateness is its delay
// after that. Streams start spread over a second, so that their steps do not coincide.
package main

import (
	"context"
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
	"github.com/tandem-inference/tandem/tests/cluster"
)

// Limits that the program fails for.
const (
	maxLate   = 100 * time.Millisecond // p99
	maxMemory = 300 << 20              // bytes of the gateway
)

type settings struct {
	streams int
	rate    float64
	seconds int
}

func main() {
	var s settings
	flag.IntVar(&s.streams, "streams", 200, "streams at a time")
	flag.Float64Var(&s.rate, "rate", 50, "tokens a second of every stream")
	flag.IntVar(&s.seconds, "seconds", 20, "length of every stream")
	flag.Parse()
	if err := run(context.Background(), s); err != nil {
		report.Exit(err)
	}
}

func run(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp("", "tandem-streams-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	tokens := int(s.rate * float64(s.seconds))
	// One token each: a digit, and a newline that no merge spans.
	options, err := cluster.Scripted(dir,
		[]cluster.Rule{{Prompt: "count", Emit: strings.Repeat("7\n", tokens/2), TokensPerSecond: s.rate}},
		"--lanes", fmt.Sprint(s.streams), "--log-level", "warn")
	if err != nil {
		return err
	}
	start, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	cl, err := cluster.Start(start, options)
	if err != nil {
		return err
	}
	defer cl.Close()
	fmt.Println("# Streams\n\n" + report.Machine())

	// A first stream connects what is connected once.
	if _, err := open(cl.HTTP, min(tokens, 50)).read(); err != nil {
		return err
	}
	before := usage(cl)
	began := time.Now()
	results := make([]result, s.streams)
	errs := make([]error, s.streams)
	var group sync.WaitGroup
	for i := range s.streams {
		group.Go(func() {
			time.Sleep(time.Second * time.Duration(i) / time.Duration(s.streams))
			results[i], errs[i] = open(cl.HTTP, tokens).read()
		})
	}
	memory := peak(cl.PID(), &group)
	took := time.Since(began)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return judge(s, results, memory, took, before, usage(cl))
}

// judge prints the tables and returns an error when a limit is missed.
func judge(s settings, results []result, memory int64, took time.Duration, before,
	after map[string]time.Duration) error {
	interval := time.Duration(float64(time.Second) / s.rate)
	var late []time.Duration
	tokens, events := 0, 0
	for _, r := range results {
		tokens += r.tokens
		events += len(r.at)
		for i, at := range r.at {
			late = append(late, max(0, at.Sub(r.at[0])-time.Duration(i)*interval))
		}
	}
	if events < tokens*95/100 {
		return fmt.Errorf("%d events for %d tokens: the text does not give an event a token", events, tokens)
	}
	slices.Sort(late)
	p99, worst := report.Percentile(late, 0.99), late[len(late)-1]
	table := &report.Table{Title: fmt.Sprintf("%d streams of %g tokens a second", s.streams, s.rate),
		Header: []string{"", ""}}
	table.Add("tokens", tokens)
	table.Add("tokens a second, all streams", float64(tokens)/took.Seconds())
	table.Add("an event is late by, p50", report.Percentile(late, 0.5))
	table.Add("p99", p99)
	table.Add("at most", worst)
	table.Add("memory of the gateway at most, MB", float64(memory)/1e6)
	table.Write(os.Stdout)
	costs := &report.Table{Title: "Processor time", Header: []string{"process", "µs a token", "of one core, %"}}
	for _, name := range slices.Sorted(keys(after)) {
		used := after[name] - before[name]
		costs.Add(name, float64(used.Microseconds())/float64(tokens), 100*used.Seconds()/took.Seconds())
	}
	costs.Write(os.Stdout)
	var missed []error
	if p99 > maxLate {
		missed = append(missed, fmt.Errorf("p99 of lateness is %v, the limit %v", p99, maxLate))
	}
	if memory > maxMemory {
		missed = append(missed, fmt.Errorf("the gateway took %d MB, the limit is %d", memory>>20, maxMemory>>20))
	}
	return errors.Join(missed...)
}

func keys(m map[string]time.Duration) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// usage is the processor time of each program of the cluster and of this one.
func usage(cl *cluster.Cluster) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, p := range cl.Processes() {
		if d, err := cluster.ProcessorTime(p.PID); err == nil {
			name := p.Name
			if p.PID == cl.PID() {
				name = "gateway"
			}
			out[filepath.Base(name)] += d
		}
	}
	if d, err := cluster.ProcessorTime(os.Getpid()); err == nil {
		out["(this client)"] = d
	}
	return out
}

// peak watches the memory of a process until the group is done.
func peak(pid int, group *sync.WaitGroup) int64 {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	most := int64(0)
	for {
		if s, err := cluster.SizesOf(pid); err == nil {
			most = max(most, s.RSSBytes)
		}
		select {
		case <-done:
			return most
		case <-ticker.C:
		}
	}
}
