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
	streams      = 4 // beside which prompts are read
)

// rate is that of all requests at a time, in tokens a second.
type rate struct {
	Mode     string  `json:"mode"`
	Requests int     `json:"requests"`
	Tokens   float64 `json:"tokens_per_second"`
}

// gaps are those between tokens of streams while a long prompt is read, and the prompt's time. Without is what the
// same streams have just before, without a prompt: what the machine does to them.
type gaps struct {
	Mode    string  `json:"mode"`
	Without spread  `json:"without_prompt"`
	Beside  spread  `json:"beside_prompt"`
	Prompt  float64 `json:"prompt_ms"` // to its first token
}

// spread of gaps in milliseconds.
type spread struct {
	Gaps int     `json:"gaps"`
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	Max  float64 `json:"max_ms"`
}

func spreadOf(seen []float64) (s spread, err error) {
	if len(seen) == 0 {
		return s, errors.New("no stream had a token")
	}
	slices.Sort(seen)
	at := func(share float64) float64 { return seen[min(len(seen)-1, int(share*float64(len(seen))))] }
	return spread{len(seen), at(0.5), at(0.99), at(1)}, nil
}

// prompts compares a long prompt alone with one beside plain streams.
type prompts struct {
	Alone float64 `json:"alone"` // tokens a second
	// Processor time of the target's engine for a token of the prompt: beside streams what it took less the streams'
	// tokens at what they take without a prompt. Other programs on the machine disturb it little.
	AloneUS  float64 `json:"alone_us"`
	BesideUS float64 `json:"beside_us"`
	Keeps    float64 `json:"keeps"` // share of its rate beside streams, by processor time
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
	engine int // pid of the target's
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
		"--demo", "--lanes", strconv.Itoa(slots), "--max-ctx", strconv.Itoa(o.prompt + 1024),
	}}
	if name == "before" {
		opts.Programs = o.before
	} else {
		opts.Env = []string{"TANDEM_MAX_TOKEN_GAP_MS=" + strconv.Itoa(o.gap)}
	}
	cl, err := report.Start(ctx, opts)
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
	if s.engine, err = engineOf(cl); err != nil {
		s.stop()
		return nil, err
	}
	for len(s.long) < o.prompt {
		s.long = append(s.long, cases[len(s.long)%len(cases)].IDs...)
	}
	s.long = s.long[:o.prompt]
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

// background are streams that run until end.
type background struct {
	mu   sync.Mutex
	seen []float64 // milliseconds between messages with tokens
	stop context.CancelFunc
	wait sync.WaitGroup
}

// begin starts streams that decode one case after the other.
func (s *server) begin(ctx context.Context, mode tandemv1.SpeculationMode) *background {
	ctx, stop := context.WithCancel(ctx)
	b := &background{stop: stop}
	for i := range streams {
		b.wait.Go(func() {
			for k := i; ctx.Err() == nil; k++ {
				last := time.Time{}
				_, _ = s.decode(ctx, &tandemv1.DecodeRequest{
					PromptTokens: s.cases[k%len(s.cases)].IDs, MaxTokens: 400, TopLogprobs: -1,
					Speculation: &tandemv1.Speculation{Mode: mode},
				}, func() {
					now := time.Now()
					b.mu.Lock()
					defer b.mu.Unlock()
					if !last.IsZero() {
						b.seen = append(b.seen, 1e3*now.Sub(last).Seconds())
					}
					last = now
				})
			}
		})
	}
	return b
}

func (b *background) end() {
	b.stop()
	b.wait.Wait()
}

// take returns the gaps since it was called last.
func (b *background) take() []float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.seen
	b.seen = nil
	return list
}

// gaps reads a long prompt beside streams.
func (s *server) gaps(ctx context.Context, mode tandemv1.SpeculationMode) (g gaps, err error) {
	b := s.begin(ctx, mode)
	defer b.end()
	time.Sleep(500 * time.Millisecond)
	b.take()
	time.Sleep(2 * time.Second)
	if g.Without, err = spreadOf(b.take()); err != nil {
		return g, err
	}
	if g.Prompt, err = s.first(ctx); err != nil {
		return g, err
	}
	g.Beside, err = spreadOf(b.take())
	return g, err
}

// prompts compares a long prompt alone with one beside streams.
func (s *server) prompts(ctx context.Context) (p prompts, err error) {
	ms := 0.0
	alone, err := s.processor(func() (err error) {
		ms, err = s.first(ctx)
		return err
	})
	if err != nil {
		return p, err
	}
	p.Alone = float64(len(s.long)) / ms * 1e3
	p.AloneUS = 1e6 * alone.Seconds() / float64(len(s.long))

	b := s.begin(ctx, modeOf["off"])
	defer b.end()
	time.Sleep(500 * time.Millisecond)
	b.take()
	without, err := s.processor(func() error {
		time.Sleep(3 * time.Second)
		return nil
	})
	tokens := float64(len(b.take()))
	if err != nil || tokens == 0 {
		return p, errors.Join(err, errors.New("streams without tokens"))
	}
	beside, err := s.processor(func() error {
		_, err := s.first(ctx)
		return err
	})
	if err != nil {
		return p, err
	}
	own := beside.Seconds() - float64(len(b.take()))*without.Seconds()/tokens
	p.BesideUS = 1e6 * own / float64(len(s.long))
	p.Keeps = p.AloneUS / p.BesideUS
	workers, err := s.http.Workers(ctx)
	if err != nil {
		return p, err
	}
	for _, w := range workers {
		if w.Speculation != nil && w.Speculation.PromptMS != nil {
			p.PromptMS, p.BesideMS = w.Speculation.PromptMS, w.Speculation.PromptBesideMS
		}
	}
	return p, nil
}

// processor returns the processor time that the target's engine takes while f runs.
func (s *server) processor(f func() error) (time.Duration, error) {
	before, err := cluster.ProcessorTime(s.engine)
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := cluster.ProcessorTime(s.engine)
	return after - before, err
}

// engineOf returns the engine process of the target.
func engineOf(cl *cluster.Cluster) (int, error) {
	worker := cl.Find("worker-target")
	for _, p := range cl.Processes() {
		if p.Parent == worker && p.Name == "tandem-engine" {
			return p.PID, nil
		}
	}
	return 0, errors.New("the target has no engine process")
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
