package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

const (
	mostRequests = 64
	promptTokens = 16384
	streams      = 4 // beside which prompts are read
)

// rate is that of all requests at a time, in tokens a second.
type rate struct {
	Mode     string  `json:"mode"`
	Requests int     `json:"requests"`
	Tokens   float64 `json:"tokens_per_second"`
}

// gaps are those between tokens of streams while a long prompt is read, and the prompt's time.
type gaps struct {
	Mode   string  `json:"mode"`
	Gaps   int     `json:"gaps"`
	P50    float64 `json:"p50_ms"`
	P99    float64 `json:"p99_ms"`
	Max    float64 `json:"max_ms"`
	Prompt float64 `json:"prompt_ms"` // to its first token
}

// prompts are rates of a prompt's pieces in tokens a second.
type prompts struct {
	Alone  float64 `json:"alone"`
	Beside float64 `json:"beside"` // of the time that the step takes beyond that of its rounds, by the worker's estimate
	// Estimates of the worker in milliseconds, by rows.
	PromptMS map[string]float64 `json:"prompt_ms,omitempty"`
	BesideMS map[string]float64 `json:"prompt_beside_ms,omitempty"`
}

var modeOf = map[string]tandemv1.SpeculationMode{
	"off": tandemv1.SpeculationMode_SPECULATION_MODE_OFF, "auto": tandemv1.SpeculationMode_SPECULATION_MODE_AUTO,
	"chain": tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN, "tree": tandemv1.SpeculationMode_SPECULATION_MODE_TREE,
}

// server is a running cluster.
type server struct {
	name   string
	target tandemv1.TargetServiceClient
	http   *client.Client
	stop   func()
	cases  []report.Case
	alone  [][]int32 // the texts of cases
	long   []int32
}

// start starts a cluster of the demonstration models.
func start(ctx context.Context, name string, o options, cases []report.Case) (*server, error) {
	slots := streams + 2
	for _, n := range o.requests {
		slots = max(slots, n)
	}
	opts := cluster.Options{Args: []string{
		"--demo", "--lanes", strconv.Itoa(slots), "--max-ctx", strconv.Itoa(promptTokens + 1024),
	}}
	if name == "before" {
		opts.Programs = o.before
	} else {
		opts.Env = []string{"TANDEM_MAX_TOKEN_GAP_MS=" + strconv.Itoa(o.gap)}
	}
	startCtx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cl, err := cluster.Start(startCtx, opts)
	if err != nil {
		return nil, err
	}
	http := client.New(cl.HTTP)
	target, hangUp, err := report.DialTarget(ctx, http)
	if err != nil {
		cl.Close()
		return nil, err
	}
	s := &server{name: name, target: target, http: http, cases: cases, stop: func() {
		_ = hangUp()
		cl.Close()
	}}
	for len(s.long) < promptTokens {
		s.long = append(s.long, cases[len(s.long)%len(cases)].IDs...)
	}
	s.long = s.long[:promptTokens]
	for _, c := range cases {
		text, err := s.ask(ctx, c, modeOf["off"])
		if err != nil {
			s.stop()
			return nil, err
		}
		s.alone = append(s.alone, text)
	}
	return s, nil
}

// measure runs every measurement once.
func (s *server) measure(ctx context.Context, o options, r *results) error {
	for _, name := range o.modes {
		mode, ok := modeOf[name]
		if !ok {
			return fmt.Errorf("-modes: %q is none of off, auto, chain, tree", name)
		}
		for _, n := range o.requests {
			tokens, err := s.rate(ctx, mode, n, o.seconds)
			if err != nil {
				return err
			}
			r.Rates[s.name] = append(r.Rates[s.name], rate{name, n, tokens})
		}
		g, err := s.gaps(ctx, mode)
		if err != nil {
			return err
		}
		g.Mode = name
		r.Gaps[s.name] = append(r.Gaps[s.name], g)
	}
	p, err := s.prompts(ctx)
	if err == nil {
		r.Prompts[s.name] = append(r.Prompts[s.name], p)
	}
	return err
}

// rate returns the rate of n requests at a time.
func (s *server) rate(ctx context.Context, mode tandemv1.SpeculationMode, n int, seconds float64) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tokens, errs := make([]int, n), make([]error, n)
	var wait sync.WaitGroup
	start := time.Now()
	for i := range n {
		wait.Go(func() {
			for k := i * len(s.cases) / n; time.Since(start).Seconds() < seconds; k++ {
				got, err := s.ask(ctx, s.cases[k%len(s.cases)], mode)
				if err == nil && !slices.Equal(got, s.alone[k%len(s.alone)]) {
					err = fmt.Errorf("text %d is another one with %d requests", k%len(s.cases), n)
				}
				if errs[i] = err; err != nil {
					cancel()
					return
				}
				tokens[i] += len(got)
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

// gaps reads a long prompt beside streams.
func (s *server) gaps(ctx context.Context, mode tandemv1.SpeculationMode) (gaps, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	reading := false
	var seen []float64
	var wait sync.WaitGroup
	for i := range streams {
		wait.Go(func() {
			for k := i; ctx.Err() == nil; k++ {
				last := time.Time{}
				_, _ = s.decode(ctx, &tandemv1.DecodeRequest{
					PromptTokens: s.cases[k%len(s.cases)].IDs, MaxTokens: 400, TopLogprobs: -1,
					Speculation: &tandemv1.Speculation{Mode: mode},
				}, func() {
					now := time.Now()
					mu.Lock()
					defer mu.Unlock()
					if reading && !last.IsZero() {
						seen = append(seen, 1e3*now.Sub(last).Seconds())
					}
					last = now
				})
			}
		})
	}
	defer wait.Wait()
	defer cancel()
	time.Sleep(500 * time.Millisecond)
	set := func(on bool) {
		mu.Lock()
		defer mu.Unlock()
		reading = on
	}
	total := 0.0
	const repeats = 2
	for range repeats {
		set(true)
		d, err := s.first(ctx)
		set(false)
		if err != nil {
			return gaps{}, err
		}
		total += d
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) == 0 {
		return gaps{}, errors.New("no stream had a token while a prompt was read")
	}
	slices.Sort(seen)
	at := func(share float64) float64 { return seen[min(len(seen)-1, int(share*float64(len(seen))))] }
	return gaps{Gaps: len(seen), P50: at(0.5), P99: at(0.99), Max: at(1), Prompt: total / repeats}, nil
}

// prompts compares the rate of a long prompt alone with that beside streams.
func (s *server) prompts(ctx context.Context) (p prompts, err error) {
	ms, err := s.first(ctx)
	if err != nil {
		return p, err
	}
	p.Alone = promptTokens / ms * 1e3
	workers, err := s.http.Workers(ctx)
	if err != nil {
		return p, err
	}
	for _, w := range workers {
		if w.Speculation != nil && w.Speculation.PromptMS != nil {
			p.PromptMS, p.BesideMS = w.Speculation.PromptMS, w.Speculation.PromptBesideMS
			p.Beside = p.Alone * p.PromptMS["256"] / p.BesideMS["256"]
		}
	}
	return p, nil
}

// first reads the long prompt, with another beginning each time, and returns the time to its first token in
// milliseconds.
func (s *server) first(ctx context.Context) (float64, error) {
	prompt := slices.Clone(s.long)
	prompt[0] = rand.Int32N(1000) // nothing that was read before helps
	start := time.Now()
	took := 0.0
	_, err := s.decode(ctx, &tandemv1.DecodeRequest{PromptTokens: prompt, MaxTokens: 1, TopLogprobs: -1}, func() {
		took = 1e3 * time.Since(start).Seconds()
	})
	return took, err
}

// ask returns the text of a case.
func (s *server) ask(ctx context.Context, c report.Case, mode tandemv1.SpeculationMode) ([]int32, error) {
	return s.decode(ctx, &tandemv1.DecodeRequest{
		RequestId: "bench", PromptTokens: c.IDs, MaxTokens: int32(len(c.Greedy)),
		StopTokens: c.Greedy[len(c.Greedy)-1:], TopLogprobs: -1, Speculation: &tandemv1.Speculation{Mode: mode},
	}, func() {})
}

// decode returns the tokens of a request; each is called when some come.
func (s *server) decode(ctx context.Context, m *tandemv1.DecodeRequest, each func()) ([]int32, error) {
	stream, err := s.target.Decode(ctx, m)
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
		if more := message.GetCommitted().GetTokens(); len(more) > 0 {
			tokens = append(tokens, more...)
			each()
		}
	}
}
