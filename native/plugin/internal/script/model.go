package script

import (
	"encoding/binary"
	"time"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/enginefake"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// maxPlans bounds the answers that are kept for prompts.
const maxPlans = 1024

// Model follows rules. It implements enginefake.TextModel.
//
// The distribution after a text has the scripted token well above three runners-up, so that log-probabilities look like
// those of a model that knows what to say. The choice is not drawn from it: the script decides, whatever temperature,
// seed, top-k and penalties say. Masks are honoured, as plan.allowed documents, and so are biases, which add to the raw
// logits.
type Model struct {
	tok   *tokenizer.Tokenizer
	vocab int
	rules []Rule
	end   int32
	plans map[planKey]*plan
}

type planKey struct {
	key    uint64
	prompt int
}

// NewModel returns a model with this vocabulary.
func NewModel(tok *tokenizer.Tokenizer, rules []Rule) *Model {
	m := &Model{tok: tok, vocab: tok.VocabSize(), rules: rules, end: tok.EOS(), plans: map[planKey]*plan{}}
	if stops := tok.StopTokens(); m.end < 0 && len(stops) > 0 {
		m.end = stops[0]
	}
	return m
}

// plan is the answer to the prompt of t.
func (m *Model) plan(t enginefake.Text) *plan {
	key := planKey{t.Key, t.Prompt}
	p := m.plans[key]
	if p == nil {
		rule, text := answer(m.rules, m.tok.Decode(t.Tokens[:t.Prompt], true))
		p = newPlan(m.tok, rule, text, m.end)
		if len(m.plans) >= maxPlans {
			clear(m.plans)
		}
		m.plans[key] = p
	}
	return p
}

// Logits of the scripted token and of the runners-up.
const (
	sureLogit  = 12
	firstRival = 9
	rivals     = 3
)

// scramble is a hash of a token and its position (the finaliser of SplitMix64, public domain).
func scramble(token int32, position, salt int) uint64 {
	x := uint64(uint32(token))<<32 ^ uint64(position)<<8 ^ uint64(salt)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Peaks implements enginefake.TextModel, as do the methods below.
func (m *Model) Peaks(t enginefake.Text, dst []enginefake.Peak) []enginefake.Peak {
	n := len(t.Tokens)
	last := int32(0)
	if n > 0 {
		last = t.Tokens[n-1]
	}
	if n >= t.Prompt {
		p := m.plan(t)
		jitter := float32(scramble(last, n, 0)%256) / 256
		dst = append(dst, enginefake.Peak{Token: p.next(p.place(t.Output())), Logit: sureLogit + jitter})
	}
	for i := range rivals {
		rival := int32(scramble(last, n, i+1) % uint64(m.vocab))
		taken := false
		for _, d := range dst {
			taken = taken || d.Token == rival
		}
		if !taken {
			dst = append(dst, enginefake.Peak{Token: rival, Logit: float32(firstRival - i)})
		}
	}
	return dst
}

// Choose follows the script as far as mask and biases let it.
func (m *Model) Choose(t enginefake.Text, peaks []enginefake.Peak, s *engine.Sampler, mask []uint32) int32 {
	bias := func(token int32) float32 {
		for i, b := range s.BiasTokens {
			if b == token {
				return s.BiasValues[i]
			}
		}
		return 0
	}
	const banned = -50 // less than any logit can make up for
	ok := func(token int32) bool {
		return token >= 0 && (mask == nil || mask[token/32]>>(token%32)&1 != 0) && bias(token) > banned
	}
	best := int32(-1)
	if len(t.Tokens) >= t.Prompt {
		p := m.plan(t)
		best = p.allowed(p.place(t.Output()), ok)
	} else if len(peaks) > 0 && ok(peaks[0].Token) {
		best = peaks[0].Token
	}
	if best < 0 || len(s.BiasTokens) == 0 {
		return best
	}
	top := float32(sureLogit) + bias(best)
	consider := func(token int32, logit float32) {
		if v := logit + bias(token); ok(token) && (v > top || v == top && token < best) {
			best, top = token, v
		}
	}
	for _, p := range peaks {
		consider(p.Token, p.Logit)
	}
	for _, token := range s.BiasTokens {
		consider(token, 0)
	}
	return best
}

// Layout of a hint: number of tokens, how many of the draft's are to be right, then the tokens that follow, the anchor
// first.
const (
	hintHeader = 2
	hintToken  = 4
	maxRight   = 255
)

// Hint tells a draft what follows.
func (m *Model) Hint(t enginefake.Text, hint []byte) {
	if len(t.Tokens) < t.Prompt || len(hint) < hintHeader {
		return
	}
	p := m.plan(t)
	output := t.Output()
	var buf [maxRight]int32
	tokens := p.ahead(p.place(output), min((len(hint)-hintHeader)/hintToken, maxRight), buf[:0])
	hint[0], hint[1] = byte(len(tokens)), byte(min(p.right(len(output)), maxRight))
	for i, token := range tokens {
		binary.LittleEndian.PutUint32(hint[hintHeader+i*hintToken:], uint32(token))
	}
}

// Guess is right as often as the hint says, then wrong.
func (m *Model) Guess(hint []byte, anchor int32, n int, dst []int32) []int32 {
	token := func(i int) int32 {
		return int32(binary.LittleEndian.Uint32(hint[hintHeader+i*hintToken:]) % uint32(m.vocab))
	}
	if len(hint) < hintHeader {
		return dst
	}
	known := min(int(hint[0]), (len(hint)-hintHeader)/hintToken)
	if known == 0 || token(0) != anchor {
		return dst
	}
	for i := 1; i < known && i <= n; i++ {
		t := token(i)
		if i > int(hint[1]) {
			t = (t + 1) % int32(m.vocab)
		}
		dst = append(dst, t)
	}
	return dst
}

// Pace is that of the rule.
func (m *Model) Pace(t enginefake.Text) (token, first time.Duration) {
	if len(t.Tokens) < t.Prompt {
		return 0, 0
	}
	r := m.plan(t).rule
	if r.TokensPerSecond > 0 {
		token = time.Duration(float64(time.Second) / r.TokensPerSecond)
	}
	return token, time.Duration(r.FirstTokenMs) * time.Millisecond
}
