package script

import (
	"bytes"
	"sort"

	"github.com/tandem-inference/tandem/services/tokenizer"
)

// plan is the answer to one prompt: the tokens of the text, and how output that strays from it finds back.
//
// A place in the plan is an offset in its text. Output moves it on as follows.
//   - A token whose bytes continue the text, however they are cut into tokens, moves behind them.
//   - A special token that comes later in the text moves behind its next occurrence: so a forced </think> skips the
//     rest of the thinking, a forced <tool_call> what comes before the call.
//   - Any other token that comes later in the same stretch between special tokens moves behind its next occurrence: so
//     a mask that allows only { skips an introduction.
//   - What is not in the text at all moves nothing: the text goes on where it was.
//
// At the end of the text the turn ends.
type plan struct {
	tok    *tokenizer.Tokenizer
	rule   *Rule
	tokens []int32
	text   []byte
	starts []int // offset of each token in text
	end    int32 // token that ends the turn
}

func newPlan(tok *tokenizer.Tokenizer, rule *Rule, text string, end int32) *plan {
	p := &plan{tok: tok, rule: rule, end: end, tokens: tok.Encode(text, tokenizer.Options{ParseSpecial: true})}
	for _, t := range p.tokens {
		p.starts = append(p.starts, len(p.text))
		p.text = append(p.text, tok.TokenBytes(t)...)
	}
	return p
}

func special(tok *tokenizer.Tokenizer, t int32) bool {
	k := tok.TokenKind(t)
	return k == tokenizer.KindControl || k == tokenizer.KindUserDefined
}

// at is the index of the token that holds offset place, len(tokens) at the end.
func (p *plan) at(place int) int {
	if place >= len(p.text) {
		return len(p.tokens)
	}
	return sort.SearchInts(p.starts, place+1) - 1
}

// stretch is the text from place to the next special token or the end.
func (p *plan) stretch(place int) []byte {
	for k := p.at(place); k < len(p.tokens); k++ {
		if special(p.tok, p.tokens[k]) {
			return p.text[place:p.starts[k]]
		}
	}
	return p.text[place:]
}

// place is where the text stands after an output.
func (p *plan) place(output []int32) int {
	// Most output is the text's own tokens.
	same := 0
	for same < min(len(output), len(p.tokens)) && output[same] == p.tokens[same] {
		same++
	}
	place := len(p.text)
	if same < len(p.tokens) {
		place = p.starts[same]
	}
	for _, t := range output[same:] {
		place = p.advance(place, t)
	}
	return place
}

// advance is the place after one more token.
func (p *plan) advance(place int, token int32) int {
	k := p.at(place)
	if k < len(p.tokens) && p.starts[k] == place && p.tokens[k] == token {
		return place + len(p.tok.TokenBytes(token))
	}
	if special(p.tok, token) {
		for ; k < len(p.tokens); k++ {
			if p.tokens[k] == token && p.starts[k] >= place {
				return p.starts[k] + len(p.tok.TokenBytes(token))
			}
		}
		return place
	}
	text := p.tok.TokenBytes(token)
	if i := bytes.Index(p.stretch(place), text); i >= 0 && len(text) > 0 {
		return place + i + len(text)
	}
	return place
}

// next is the token that continues the text at place.
func (p *plan) next(place int) int32 {
	k := p.at(place)
	switch {
	case k == len(p.tokens):
		return p.end
	case p.starts[k] == place:
		return p.tokens[k]
	}
	// In the middle of a token: what is left of it as tokens of its own.
	left := p.text[place : p.starts[k]+len(p.tok.TokenBytes(p.tokens[k]))]
	if ids := p.tok.Encode(string(left), tokenizer.Options{}); len(ids) > 0 &&
		bytes.HasPrefix(left, p.tok.TokenBytes(ids[0])) {
		return ids[0]
	}
	// Half a character does not survive as text, but every byte is a token.
	id, _ := p.tok.ID(string(left[:1]))
	return id
}

// ahead appends the next n tokens of the text, fewer at its end.
func (p *plan) ahead(place, n int, dst []int32) []int32 {
	for range n {
		t := p.next(place)
		dst = append(dst, t)
		if t == p.end && place >= len(p.text) {
			break
		}
		place = p.advance(place, t)
	}
	return dst
}

// right is how many of the draft's tokens are to be right when output tokens are there and the anchor follows them.
func (p *plan) right(output int) int {
	if len(p.rule.Accept) == 0 {
		return 1 << 30
	}
	cycle := 0
	for _, n := range p.rule.Accept {
		cycle += n
	}
	// Rounds begin behind the first token, which the prompt's last step chose.
	done := output % cycle
	for _, n := range p.rule.Accept {
		if done < n {
			return n - done - 1
		}
		done -= n
	}
	return 0
}
