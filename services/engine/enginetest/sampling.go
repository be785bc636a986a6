package enginetest

import (
	"math"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/sampling"
)

func hot(seed uint64, prompt int) engine.Sampler {
	p := engine.DefaultSampler()
	p.Temperature, p.Seed, p.PromptTokens = 1.5, seed, int32(prompt)
	return p
}

// decode generates n tokens after a prompt with single rows.
func (s *suite) decode(e engine.Target, prompt []int32, sampler engine.Sampler, n int) []int32 {
	s.Helper()
	q := s.sequence(e)
	defer func() { s.ok(e.FreeSequence(s.ctx, q)) }()
	s.ok(e.SetSampler(s.ctx, q, sampler))
	r := s.feed(e, q, prompt, engine.WantToken)
	out := []int32{r.Tokens[len(prompt)-1]}
	g := pending(q)
	for len(out) < n {
		s.ok(e.Step(s.ctx, one(g, rowsOf(len(prompt)+len(out)-1, chain(out[len(out)-1:]), engine.WantToken)), r))
		out = append(out, r.Tokens[0])
		g.Path = []int32{0}
	}
	return out
}

func (s *suite) samplerReproducible() {
	e := s.target()
	prompt := s.tokens(e, promptTokens)
	a := s.decode(e, prompt, hot(11, promptTokens), 24)
	if b := s.decode(e, prompt, hot(11, promptTokens), 24); !slices.Equal(a, b) {
		s.Errorf("the same seed gave %v and %v", a, b)
	}
	other := hot(11, promptTokens)
	other.Choice = 1
	for name, sampler := range map[string]engine.Sampler{"seed": hot(12, promptTokens), "choice": other} {
		if b := s.decode(e, prompt, sampler, 24); slices.Equal(a, b) != s.models.Scripted {
			s.Errorf("another %s gave %v after %v", name, b, a)
		}
	}
	// A chain that holds the text gives it back: every row is sampled with the state of its own path.
	penal := hot(11, promptTokens)
	penal.RepetitionPenalty, penal.FrequencyPenalty, penal.PresencePenalty = 1.3, 0.2, 0.1
	for name, sampler := range map[string]engine.Sampler{"temperature": hot(11, promptTokens), "penalties": penal} {
		want := s.decode(e, prompt, sampler, 24)
		q := s.sequence(e)
		s.ok(e.SetSampler(s.ctx, q, sampler))
		s.feed(e, q, prompt, 0)
		r := s.step(e, q, chain(want[:23]), engine.WantToken)
		if !slices.Equal(r.Tokens, want[1:]) {
			s.Errorf("%s: verified chain gives %v, decoding %v", name, r.Tokens, want[1:])
		}
		// Siblings do not disturb each other's penalties.
		tree := []node{{want[0], -1}, {want[5], 0}, {want[1], 0}, {want[5], 2}, {want[2], 2}}
		r = s.step(e, q, tree, engine.WantToken)
		if r.Tokens[0] != want[1] || r.Tokens[2] != want[2] || r.Tokens[4] != want[3] {
			s.Errorf("%s: verified tree gives %v, decoding %v", name, r.Tokens, want[1:4])
		}
		// Another batch, a restored state: still the same.
		p, err := e.NewSnapshot(s.ctx, q)
		s.ok(err)
		s.ok(e.RestoreSnapshot(s.ctx, p, q))
		s.ok(e.FreeSnapshot(s.ctx, p))
		if r = s.step(e, q, chain(want[:1]), engine.WantToken); r.Tokens[0] != want[1] {
			s.Errorf("%s: after restore %d, want %d", name, r.Tokens[0], want[1])
		}
		s.ok(e.FreeSequence(s.ctx, q))
	}
}

func (s *suite) samplerSettings() {
	e := s.target()
	prompt := s.tokens(e, promptTokens)
	greedy := s.decode(e, prompt, engine.DefaultSampler(), 12)
	for name, edit := range map[string]func(*engine.Sampler){
		"top_k 1":          func(p *engine.Sampler) { p.TopK = 1 },
		"tiny top_p":       func(p *engine.Sampler) { p.TopP = 1e-6 },
		"min_p 1":          func(p *engine.Sampler) { p.MinP = 1 },
		"tiny temperature": func(p *engine.Sampler) { p.Temperature = 1e-5 },
		"temperature 0":    func(p *engine.Sampler) { p.Temperature = 0 },
	} {
		sampler := hot(5, promptTokens)
		edit(&sampler)
		if got := s.decode(e, prompt, sampler, 12); !slices.Equal(got, greedy) {
			s.Errorf("%s gives %v, argmax is %v", name, got, greedy)
		}
	}
	// Two tokens that the prompt, on which penalties look back, does not have.
	a := int32(3)
	for slices.Contains(prompt, a) {
		a++
	}
	b := a + 1
	for slices.Contains(prompt, b) {
		b++
	}
	bias := engine.DefaultSampler()
	bias.BiasTokens, bias.BiasValues = []int32{a, b}, []float32{1000, 950}
	if got := s.decode(e, prompt, bias, 4); !slices.Equal(got, []int32{a, a, a, a}) { // the other stays 50 behind
		s.Errorf("a bias of 1000 for %d gives %v", a, got)
	}
	// The penalty falls on what was generated.
	bias.FrequencyPenalty = 100
	if got := s.decode(e, prompt, bias, 2); !s.models.Scripted && (got[0] != a || got[1] != b) {
		s.Errorf("bias with penalty gives %v, want %d, %d", got, a, b)
	}
	banned := engine.DefaultSampler()
	banned.BiasTokens, banned.BiasValues = []int32{greedy[0]}, []float32{-1e5}
	if got := s.decode(e, prompt, banned, 1); got[0] == greedy[0] {
		s.Error("a bias of -100000 does not ban")
	}
}

func (s *suite) samplerErrors() {
	e := s.target()
	q := s.sequence(e)
	vocab := int32(e.Info().Vocab)
	for _, c := range []struct {
		field string
		edit  func(*engine.Sampler)
	}{
		{"temperature", func(p *engine.Sampler) { p.Temperature = -1 }},
		{"temperature", func(p *engine.Sampler) { p.Temperature = float32(math.NaN()) }},
		{"top_p", func(p *engine.Sampler) { p.TopP = 0 }},
		{"top_p", func(p *engine.Sampler) { p.TopP = 1.5 }},
		{"min_p", func(p *engine.Sampler) { p.MinP = -0.1 }},
		{"repetition_penalty", func(p *engine.Sampler) { p.RepetitionPenalty = 0 }},
		{"penalty_window", func(p *engine.Sampler) { p.PenaltyWindow = -1 }},
		{"bias_tokens", func(p *engine.Sampler) { p.BiasTokens, p.BiasValues = []int32{vocab}, []float32{1} }},
		{"bias", func(p *engine.Sampler) { p.BiasTokens, p.BiasValues = []int32{1}, nil }},
	} {
		p := engine.DefaultSampler()
		c.edit(&p)
		s.refused(c.field, e.SetSampler(s.ctx, q, p), codes.InvalidArgument, c.field)
	}
	s.refused("sequence", e.SetSampler(s.ctx, 4711, engine.DefaultSampler()), codes.NotFound, "sequence")
	s.ok(e.SetSampler(s.ctx, q, engine.DefaultSampler()))
}

// samplerDeclared: an engine takes what requests may set (services/sampling), ends included, and no value that is no
// number.
func (s *suite) samplerDeclared() {
	e := s.target()
	prompt := s.tokens(e, promptTokens)
	q := s.sequence(e)
	for _, f := range sampling.Fields() {
		set := func(v float64) engine.Sampler {
			m := &tandemv1.Sampling{Temperature: proto.Float64(1)}
			switch {
			case f.Map():
				f.SetMap(m, map[int32]float64{3: v})
			case f.Whole():
				f.SetInt(m, int64(v))
			default:
				f.SetFloat(m, v)
			}
			return engine.SamplerOf(m)
		}
		least, most := f.Range.Ends()
		if math.IsInf(least, 0) {
			least, most = math.MinInt32, math.MaxInt32 // a seed: any bits
		}
		for _, v := range []float64{least, most} {
			if got := s.decode(e, prompt, set(v), 4); len(got) != 4 || slices.Min(got) < 0 {
				s.Errorf("%s %v gives %v", f.Name, v, got)
			}
		}
		field := f.Name
		if f.Map() {
			field = "bias_values"
		}
		if !f.Whole() {
			s.refused(field, e.SetSampler(s.ctx, q, set(math.NaN())), codes.InvalidArgument, field)
		}
	}
}

func (s *suite) masks() {
	e := s.target()
	q := s.sequence(e)
	s.feed(e, q, s.tokens(e, promptTokens), 0)
	vocab := e.Info().Vocab
	words := (vocab + 31) / 32
	free := s.step(e, q, chain([]int32{1, 2, 3}), everything)
	want := []row{rowBits(free, 0, 3), rowBits(free, 1, 3)}
	best := free.Tokens[2]
	// Mask 0 allows everything but the best token of row 2; mask 1 allows tokens 4 and 6 only.
	masks := make([]uint32, 2*words)
	for i := range masks[:words] {
		masks[i] = ^uint32(0)
	}
	masks[best/32] &^= 1 << (best % 32)
	masks[words] |= 1<<4 | 1<<6
	rows := rowsOf(promptTokens, chain([]int32{1, 2, 3}), everything)
	rows[1].Mask, rows[2].Mask = 1, 0
	for _, temperature := range []float32{0, 1} {
		sampler := engine.DefaultSampler()
		sampler.Temperature = temperature
		s.ok(e.SetSampler(s.ctx, q, sampler))
		r := &engine.StepResult{}
		step := one(pending(q), rows)
		step.Masks, step.NMasks = masks, 2
		s.ok(e.Step(s.ctx, step, r))
		if r.Tokens[1] != 4 && r.Tokens[1] != 6 {
			s.Errorf("temperature %v: a masked row chose %d", temperature, r.Tokens[1])
		}
		if r.Tokens[2] == best {
			s.Errorf("temperature %v: the only masked token was chosen", temperature)
		}
		if temperature == 0 {
			s.same("a row without mask", want[0], rowBits(r, 0, 3))
		}
		// Log-probabilities and candidates are those of the raw logits.
		masked := rowBits(r, 1, 3)
		masked.token, masked.logprob = want[1].token, want[1].logprob
		s.same("raw outputs of a masked row", want[1], masked)
	}
	r := &engine.StepResult{}
	step := one(pending(q), rows)
	step.Masks, step.NMasks = masks[:2*words-1], 2
	s.refused("too few words", e.Step(s.ctx, step, r), codes.InvalidArgument, "masks")
}
