package benchcard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Modes of speculation, as requests name them. A server that has none is asked as it is: ModeDefault.
const (
	ModePlain   = "off"
	ModeDefault = "default"
)

// Question is one greedy request.
type Question struct {
	Prompt    string
	MaxTokens int
	Mode      string
}

// Reply is what came of it.
type Reply struct {
	Text string
	// Pieces are the times at which text came, Total when the stream ended, both since the request was sent.
	Pieces []time.Duration
	Total  time.Duration
	// PromptTokens, Tokens and CachedTokens are the server's; 0 where it does not report them.
	PromptTokens, Tokens, CachedTokens int
	// Steps, Drafted, Accepted and ServerMS are Tandem's timings.
	Steps, Drafted, Accepted int64
	ServerMS                 float64
}

// tokens is the length of the answer; counted says that its pieces stand for tokens.
func (r *Reply) tokens() (n int, counted bool) {
	if r.Tokens > 0 {
		return r.Tokens, false
	}
	return len(r.Pieces), true
}

// first is the time of the first piece, of an answer without text that of its end.
func (r *Reply) first() time.Duration {
	if len(r.Pieces) == 0 {
		return r.Total
	}
	return r.Pieces[0]
}

// gaps returns the milliseconds between pieces.
func (r *Reply) gaps() []float64 {
	var out []float64
	for i := 1; i < len(r.Pieces); i++ {
		out = append(out, milliseconds(r.Pieces[i]-r.Pieces[i-1]))
	}
	return out
}

func milliseconds(d time.Duration) float64 { return 1e3 * d.Seconds() }

// Endpoint is a server to measure.
type Endpoint struct {
	Name, Address string
	// Ask sends a question and waits for the whole answer.
	Ask func(ctx context.Context, q Question) (Reply, error)
	// Describe fills in what the server says of itself, modes included. It is called after the first answer.
	Describe func(ctx context.Context, s *Server) (Limits, error)
}

// Limits are what a server can take; 0 is unknown.
type Limits struct {
	Context int // tokens of prompt and answer
}

// Run measures the endpoints in turns, because figures taken at different times are not comparable. progress is called
// with what is going on.
func Run(ctx context.Context, plan Plan, endpoints []Endpoint, progress func(string)) ([]Server, error) {
	list, err := classes(plan.PerClass)
	if err != nil {
		return nil, err
	}
	var runners []*runner
	start := time.Now()
	for _, e := range endpoints {
		r := &runner{Endpoint: e, plan: plan, classes: list}
		progress(e.Name + ": warming up")
		if err := r.warmUp(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Address, err)
		}
		runners = append(runners, r)
	}
	stages := []struct {
		name  string
		share float64 // of what the warm-up leaves of the budget
		run   func(*runner, context.Context) error
	}{
		{"one request at a time", 0.5, (*runner).single},
		{"several requests at a time", 0.3, (*runner).together},
		{"long prompts", 0.2, (*runner).prompts},
	}
	left := plan.BudgetS - time.Since(start).Seconds()
	for _, stage := range stages {
		began := time.Now()
		for i := range plan.Repeats {
			// As long as those before took, on average: it would end too late.
			if spent := time.Since(began).Seconds(); i > 0 && spent+spent/float64(i) > stage.share*left {
				break
			}
			for _, r := range runners {
				progress(fmt.Sprintf("%s: %s, %d of %d", r.Name, stage.name, i+1, plan.Repeats))
				if err := stage.run(r, ctx); err != nil {
					return nil, fmt.Errorf("%s: %s: %w", r.Address, stage.name, err)
				}
			}
		}
	}
	var servers []Server
	for _, r := range runners {
		servers = append(servers, r.result())
	}
	return servers, nil
}

// runner collects what is measured of one endpoint.
type runner struct {
	Endpoint
	plan    Plan
	classes []class
	server  Server
	limits  Limits
	// wordsPerToken of the filler.
	wordsPerToken float64

	mu    sync.Mutex // guards texts and plain, which requests at a time compare
	plain map[string]string
	texts Texts

	rates    map[[2]string]*rateSum // by mode and class
	pieces   map[string]*pieceSum   // by mode
	multiple map[multipleKey]*pieceSum
	long     map[int]*promptSum // by length asked for
	overhead []float64
	counted  bool
}

type multipleKey struct {
	mode     string
	requests int
}

// rateSum are the rates of a class, one a repeat, and sums of all.
type rateSum struct {
	rates                            []float64
	tokens, steps, drafted, accepted int64
}

// pieceSum are the pieces of answers.
type pieceSum struct{ rates, first, gaps []float64 }

// promptSum are the times of a long prompt.
type promptSum struct {
	tokens, cached    int
	cold, warm, rates []float64
}

// every is the class of all together.
const every = "all"

// mostDifferent bounds the list of answers that differ.
const mostDifferent = 20

// calibration is how many words of filler are sent to see how many tokens they are.
const calibration = 200

// warmUp asks everything once and compares the texts. Plain answers come first: the others are compared with them.
func (r *runner) warmUp(ctx context.Context) error {
	r.plain, r.rates, r.pieces = map[string]string{}, map[[2]string]*rateSum{}, map[string]*pieceSum{}
	r.multiple, r.long = map[multipleKey]*pieceSum{}, map[int]*promptSum{}
	reply, err := r.Ask(ctx, Question{Prompt: filler(calibration, rand.Uint64()), MaxTokens: 1, Mode: ModeDefault})
	if err != nil {
		return err
	}
	r.wordsPerToken = 1
	if reply.PromptTokens > 0 {
		r.wordsPerToken = calibration / float64(reply.PromptTokens)
	}
	// Only now: a target attaches its draft with its first request.
	r.server = Server{Name: r.Name, Address: r.Address, Modes: []string{ModeDefault}}
	if r.limits, err = r.Describe(ctx, &r.server); err != nil {
		return err
	}
	for _, mode := range r.server.Modes {
		for _, c := range r.classes {
			for i, prompt := range c.Prompts {
				if _, err := r.ask(ctx, mode, 1, c.Name, i, prompt); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// ask asks for the answer to a prompt and compares it with the plain one.
func (r *runner) ask(ctx context.Context, mode string, requests int, class string, i int,
	prompt string) (Reply, error) {
	reply, err := r.Ask(ctx, Question{Prompt: prompt, MaxTokens: r.plan.Tokens, Mode: mode})
	if err != nil {
		return reply, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	plain, known := r.plain[prompt]
	if !known {
		r.plain[prompt] = reply.Text
		return reply, nil
	}
	r.texts.Compared++
	if reply.Text == plain {
		return reply, nil
	}
	if len(r.texts.Different) == mostDifferent {
		r.texts.Omitted++
		return reply, nil
	}
	at := 0
	for at < min(len(plain), len(reply.Text)) && plain[at] == reply.Text[at] {
		at++
	}
	r.texts.Different = append(r.texts.Different,
		Different{Mode: mode, Requests: requests, Class: class, Prompt: i, Byte: at})
	return reply, nil
}

// of returns the entry of a map, which is made when missing.
func of[K comparable, V any](m map[K]*V, key K) *V {
	if m[key] == nil {
		m[key] = new(V)
	}
	return m[key]
}

// single asks every prompt in every mode, one request at a time. Modes alternate, so that what disturbs the machine
// disturbs them alike.
func (r *runner) single(ctx context.Context) error {
	type sum struct {
		tokens int
		time   time.Duration
	}
	sums := map[[2]string]*sum{}
	for _, c := range r.classes {
		for i, prompt := range c.Prompts {
			for _, mode := range r.server.Modes {
				reply, err := r.ask(ctx, mode, 1, c.Name, i, prompt)
				if err != nil {
					return err
				}
				p := of(r.pieces, mode)
				p.first = append(p.first, milliseconds(reply.first()))
				p.gaps = append(p.gaps, reply.gaps()...)
				if reply.ServerMS > 0 {
					r.overhead = append(r.overhead, milliseconds(reply.Total)-reply.ServerMS)
				}
				n, counted := reply.tokens()
				r.counted = r.counted || counted
				for _, name := range []string{c.Name, every} {
					key := [2]string{mode, name}
					total := of(r.rates, key)
					total.tokens, total.steps = total.tokens+int64(n), total.steps+reply.Steps
					total.drafted, total.accepted = total.drafted+reply.Drafted, total.accepted+reply.Accepted
					// The first piece belongs to the prompt. It holds one token, as far as a client can see.
					if k := len(reply.Pieces); k > 1 {
						s := of(sums, key)
						s.tokens += n - 1
						s.time += reply.Pieces[k-1] - reply.Pieces[0]
					}
				}
			}
		}
	}
	for key, s := range sums {
		if s.time > 0 {
			r.rates[key].rates = append(r.rates[key].rates, float64(s.tokens)/s.time.Seconds())
		}
	}
	return nil
}

// outer are the modes that several requests at a time are measured in: the first and the last, plain and automatic.
func (r *runner) outer() []string {
	modes := r.server.Modes
	return slices.Compact([]string{modes[0], modes[len(modes)-1]})
}

// together measures the rate of several requests at a time, for the plan's seconds each.
func (r *runner) together(ctx context.Context) error {
	for _, n := range r.plan.Requests {
		for _, mode := range r.outer() {
			if err := r.atATime(ctx, mode, n); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *runner) atATime(ctx context.Context, mode string, n int) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type asked struct {
		class  string
		i      int
		prompt string
	}
	var all []asked
	for _, c := range r.classes {
		for i, prompt := range c.Prompts {
			all = append(all, asked{c.Name, i, prompt})
		}
	}
	tokens, gaps, errs := make([]int, n), make([][]float64, n), make([]error, n)
	began := time.Now()
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() {
			// Each has another prompt at a time, and each sends one at least.
			for k := i; k == i || time.Since(began).Seconds() < r.plan.Seconds; k++ {
				a := all[k%len(all)]
				reply, err := r.ask(ctx, mode, n, a.class, a.i, a.prompt)
				if err != nil {
					errs[i] = err
					cancel()
					return
				}
				got, _ := reply.tokens()
				tokens[i] += got
				gaps[i] = append(gaps[i], reply.gaps()...)
			}
		})
	}
	wait.Wait()
	elapsed := time.Since(began).Seconds()
	if err := firstCause(errs); err != nil {
		return err
	}
	sum, m := 0, of(r.multiple, multipleKey{mode, n})
	for i := range n {
		sum += tokens[i]
		m.gaps = append(m.gaps, gaps[i]...)
	}
	m.rates = append(m.rates, float64(sum)/elapsed)
	return nil
}

// firstCause returns the error that is no consequence of another one's cancellation, if there is one.
func firstCause(errs []error) error {
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return cmp.Or(errs...)
}

// room are the tokens of the context that a long prompt leaves to the template and the answer.
const room = 128

// prompts measures the first token of long prompts, cold and again. Prompts that do not fit are left out.
func (r *runner) prompts(ctx context.Context) error {
	for _, n := range r.plan.PromptTokens {
		if r.limits.Context > 0 && n > r.limits.Context-room {
			continue
		}
		q := Question{Prompt: filler(int(float64(n)*r.wordsPerToken), rand.Uint64()), MaxTokens: 1, Mode: r.outer()[0]}
		cold, err := r.Ask(ctx, q)
		if err != nil {
			return err
		}
		warm, err := r.Ask(ctx, q)
		if err != nil {
			return err
		}
		p := of(r.long, n)
		p.tokens, p.cached = cold.PromptTokens, warm.CachedTokens
		p.cold = append(p.cold, milliseconds(cold.first()))
		p.warm = append(p.warm, milliseconds(warm.first()))
		if s := cold.first().Seconds(); s > 0 && cold.PromptTokens > 0 {
			p.rates = append(p.rates, float64(cold.PromptTokens)/s)
		}
	}
	return nil
}

// result puts the sums together.
func (r *runner) result() Server {
	s := r.server
	s.Texts, s.Counted = r.texts, r.counted
	for _, mode := range s.Modes {
		for _, name := range append(r.names(), every) {
			t := r.rates[[2]string{mode, name}]
			if t == nil {
				continue
			}
			rate := Rate{Mode: mode, Class: name, TokensPerSec: spreadOf(t.rates), Drafted: t.drafted, Accepted: t.accepted}
			if t.steps > 0 {
				rate.TokensPerStep = float64(t.tokens) / float64(t.steps)
			}
			s.Rates = append(s.Rates, rate)
		}
		if p := r.pieces[mode]; p != nil {
			s.Pieces = append(s.Pieces, Pieces{Mode: mode, FirstMS: spreadOf(p.first), P50MS: quantile(p.gaps, 0.5),
				P99MS: quantile(p.gaps, 0.99), Gaps: len(p.gaps)})
		}
	}
	for _, n := range r.plan.Requests {
		for _, mode := range r.outer() {
			if m := r.multiple[multipleKey{mode, n}]; m != nil {
				s.Together = append(s.Together, Together{Mode: mode, Requests: n, TokensPerSec: spreadOf(m.rates),
					P50MS: quantile(m.gaps, 0.5), P99MS: quantile(m.gaps, 0.99)})
			}
		}
	}
	for _, n := range r.plan.PromptTokens {
		if p := r.long[n]; p != nil {
			s.Prompts = append(s.Prompts, Prompt{Asked: n, Tokens: p.tokens, Cached: p.cached, ColdMS: spreadOf(p.cold),
				WarmMS: spreadOf(p.warm), TokensPerSec: spreadOf(p.rates)})
		}
	}
	if len(r.overhead) > 0 {
		overhead := spreadOf(r.overhead)
		s.OverheadMS = &overhead
	}
	return s
}

func (r *runner) names() []string {
	var out []string
	for _, c := range r.classes {
		out = append(out, c.Name)
	}
	return out
}
