// Package soak runs mixed traffic against a cluster, a third of whose clients leave at random moments, and judges what
// must stay true: nobody is refused for want of sequences, engines hold no sequence without a request, texts, latency
// and memory stay the same.
package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// Config of a run.
type Config struct {
	Duration time.Duration
	Clients  int    // at a time
	Seed     uint64 // of clients' choices
	// LatencyRise is by which share the median time of the reference request may rise from the first third to the last, 0
	// = not judged: short runs have too few of them.
	LatencyRise float64
	// MemoryRise is by which share a process may grow from the end of the first third on, and MemorySlack by how many
	// bytes more.
	MemoryRise  float64
	MemorySlack int64
	// Log gets progress; nil = nothing.
	Log io.Writer
}

// Result of a run.
type Result struct {
	Seconds    float64           `json:"seconds"`
	Finished   int               `json:"finished"`
	Left       map[string]int    `json:"left"` // clients that gave up, by moment
	Refused    int               `json:"refused"`
	NoSequence int               `json:"refused_for_want_of_sequences"`
	Mismatches int               `json:"text_mismatches"`
	Reference  [3]Latency        `json:"reference_by_third"`
	Samples    int               `json:"cluster_samples"`
	Orphans    int               `json:"orphaned_sequences_seen"`
	AtEnd      map[string]Engine `json:"engines_at_the_end"`
	Memory     []Process         `json:"memory"`
	Problems   []string          `json:"problems"`
}

// Latency of the reference request.
type Latency struct {
	Requests int     `json:"requests"`
	MedianMs float64 `json:"median_ms"`
}

// Engine is what a worker says of its engine.
type Engine struct {
	Sequences int `json:"engine_sequences"`
	Orphans   int `json:"orphaned_sequences"`
	Busy      int `json:"lanes_busy"`
	Restarts  int `json:"engine_restarts"`
	// Freed orphans since the worker started: what was lost and cured was lost all the same.
	Freed float64 `json:"orphaned_sequences_freed"`
}

// Process is the memory of one process, in bytes.
type Process struct {
	Name   string `json:"name"`
	PID    int    `json:"pid"`
	Before int64  `json:"rss_after_first_third"`
	After  int64  `json:"rss_at_the_end"`
}

// Passed reports whether nothing was wrong.
func (r *Result) Passed() bool { return len(r.Problems) == 0 }

// run is the state of one.
type run struct {
	cfg    Config
	base   string
	client *http.Client
	start  time.Time

	mu    sync.Mutex // guards the following
	r     Result
	texts map[string]string
	times [3][]time.Duration
}

// maxProblems of one kind are told.
const maxProblems = 5

// Run runs the traffic. An error means that it could not be judged.
func Run(ctx context.Context, cl *cluster.Cluster, cfg Config) (*Result, error) {
	s := &run{
		cfg: cfg, base: cl.HTTP, texts: map[string]string{}, start: time.Now(),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * cfg.Clients}},
	}
	s.r.Left, s.r.AtEnd = map[string]int{}, map[string]Engine{}
	all := asks()
	if err := s.warmUp(ctx, all); err != nil {
		return nil, err
	}
	s.start = time.Now()
	traffic, stop := context.WithTimeout(ctx, cfg.Duration)
	defer stop()
	var group sync.WaitGroup
	for i := range cfg.Clients {
		group.Go(func() { s.traffic(ctx, traffic, all, rand.New(rand.NewPCG(cfg.Seed, uint64(i)))) })
	}
	group.Go(func() { s.reference(ctx, traffic, all[0]) })
	group.Go(func() { s.watch(ctx, traffic) })
	before := map[int]int64{}
	select {
	case <-time.After(cfg.Duration / 3):
		for _, p := range cl.Processes() {
			if z, err := cluster.SizesOf(p.PID); err == nil {
				before[p.PID] = z.RSSBytes
			}
		}
	case <-traffic.Done():
	}
	group.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	s.r.Seconds = time.Since(s.start).Seconds()
	s.settle(ctx)
	for _, p := range cl.Processes() {
		z, err := cluster.SizesOf(p.PID)
		if err != nil {
			return nil, err
		}
		m := Process{Name: p.Name, PID: p.PID, Before: before[p.PID], After: z.RSSBytes}
		s.r.Memory = append(s.r.Memory, m)
		switch {
		case m.Before == 0:
			s.problem("process %s (%d) was started during the run", p.Name, p.PID)
		case float64(m.After) > float64(m.Before)*(1+cfg.MemoryRise)+float64(cfg.MemorySlack):
			s.problem("%s (%d) grew from %d to %d MB", p.Name, p.PID, m.Before/1e6, m.After/1e6)
		}
	}
	s.judge()
	return &s.r, nil
}

func (s *run) problem(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.r.Problems = append(s.r.Problems, fmt.Sprintf(format, args...))
}

// warmUp asks every request once, alone: caches fill, and the texts are those that all others must have.
func (s *run) warmUp(ctx context.Context, all []ask) error {
	for _, a := range all {
		text, _, err := send(ctx, s.client, s.base, a, stay, nil)
		if err != nil {
			return fmt.Errorf("%s, alone: %w", a.name, err)
		}
		s.texts[a.name] = text
	}
	return nil
}

// traffic sends one request after the other until until ends. A request that was begun ends: only a client that leaves
// is cancelled.
func (s *run) traffic(ctx, until context.Context, all []ask, rng *rand.Rand) {
	for until.Err() == nil {
		a, when := all[rng.IntN(len(all))], stay
		if rng.IntN(3) == 0 {
			when = 1 + leave(rng.IntN(int(leaves)-1))
		}
		if when == whileCompress {
			a = all[len(all)-1-rng.IntN(2)]
		}
		text, left, err := send(ctx, s.client, s.base, a, when, rng)
		s.count(a, when, text, left, err)
	}
}

// count judges one request.
func (s *run) count(a ask, when leave, text string, left bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var refused *refusal
	switch {
	case left:
		s.r.Left[when.String()]++
	case errors.As(err, &refused) &&
		(strings.Contains(refused.text, "max_sequences") || strings.Contains(refused.text, "sequences are in use")):
		s.r.NoSequence++
		fallthrough
	case err != nil:
		if s.r.Refused++; s.r.Refused <= maxProblems {
			s.r.Problems = append(s.r.Problems, fmt.Sprintf("%s: %v", a.name, err))
		}
	default:
		s.r.Finished++
		if want := s.texts[a.name]; text != want {
			if s.r.Mismatches++; s.r.Mismatches <= maxProblems {
				s.r.Problems = append(s.r.Problems, fmt.Sprintf("%s: the text is %q, was %q", a.name, text, want))
			}
		}
	}
}

// reference times one and the same request throughout.
func (s *run) reference(ctx, until context.Context, a ask) {
	pause := min(2*time.Second, s.cfg.Duration/30)
	for until.Err() == nil {
		start := time.Now()
		text, _, err := send(ctx, s.client, s.base, a, stay, nil)
		took := time.Since(start)
		s.count(a, stay, text, false, err)
		third := min(2, int(3*time.Since(s.start)/s.cfg.Duration))
		s.mu.Lock()
		s.times[third] = append(s.times[third], took)
		s.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-until.Done():
		}
	}
}

// watch samples /cluster.
func (s *run) watch(ctx, until context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-until.Done():
			return
		}
		engines, err := s.engines(ctx)
		if err != nil {
			s.problem("/cluster: %v", err)
			continue
		}
		s.mu.Lock()
		s.r.Samples++
		for _, e := range engines {
			s.r.Orphans += e.Orphans
		}
		if s.cfg.Log != nil && s.r.Samples%30 == 0 {
			fmt.Fprintf(s.cfg.Log, "%4.0f s: %d requests finished, %v left, %d refused, %d mismatches, engines %v\n",
				time.Since(s.start).Seconds(), s.r.Finished, s.r.Left, s.r.Refused, s.r.Mismatches, engines)
		}
		s.mu.Unlock()
	}
}

// engines reads what the workers say of their engines.
func (s *run) engines(ctx context.Context) (map[string]Engine, error) {
	workers, err := (&client.Client{Base: s.base, HTTP: s.client}).Workers(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]Engine{}
	for _, w := range workers {
		out[w.ID] = Engine{
			Sequences: w.Sequences, Orphans: w.Orphans, Busy: w.LanesBusy, Restarts: w.Restarts,
			Freed: w.Counters["orphaned_sequences_freed"],
		}
	}
	return out, nil
}

// settleTime is how long the last cancellations and the reports of them may take.
const settleTime = 20 * time.Second

// settle waits until the engines hold no sequences: no request is at work any more.
func (s *run) settle(ctx context.Context) {
	for deadline := time.Now().Add(settleTime); ; time.Sleep(200 * time.Millisecond) {
		engines, err := s.engines(ctx)
		idle := err == nil && len(engines) > 0
		for _, e := range engines {
			idle = idle && e.Sequences == 0 && e.Busy == 0 && e.Orphans == 0
		}
		if idle || time.Now().After(deadline) {
			s.r.AtEnd = engines
			if !idle {
				s.problem("without a request at work, the engines hold %v, %v", engines, err)
			}
			return
		}
	}
}

// judge looks at what was counted.
func (s *run) judge() {
	r := &s.r
	for i, list := range s.times {
		r.Reference[i].Requests = len(list)
		if len(list) > 0 {
			slices.Sort(list)
			r.Reference[i].MedianMs = float64(list[len(list)/2].Microseconds()) / 1000
		}
	}
	first, last := r.Reference[0].MedianMs, r.Reference[2].MedianMs
	if s.cfg.LatencyRise > 0 && (first == 0 || last > first*(1+s.cfg.LatencyRise)) {
		s.problem("the reference request took %.0f ms in the first third and %.0f ms in the last", first, last)
	}
	if r.Refused > 0 {
		s.problem("%d requests failed, %d of them for want of sequences", r.Refused, r.NoSequence)
	}
	if r.Mismatches > 0 {
		s.problem("%d texts differ from those of the same request alone", r.Mismatches)
	}
	if r.Orphans > 0 {
		s.problem("engines held sequences that belonged to no request in %d samples", r.Orphans)
	}
	for id, e := range r.AtEnd {
		if e.Freed > 0 {
			s.problem("%s had to free %.0f sequences that belonged to no request", id, e.Freed)
		}
	}
	if r.Finished == 0 || r.Samples == 0 {
		s.problem("%d requests finished, /cluster was read %d times: nothing was tested", r.Finished, r.Samples)
	}
	for l := stay + 1; l < leaves; l++ {
		if r.Left[l.String()] == 0 {
			s.problem("no client left %s", l)
		}
	}
}
