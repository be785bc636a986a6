package script

// longestToken bounds the bytes of tokens that are tried as continuations of the text.
const longestToken = 24

// closers end what a grammar has open; they are what an exhausted script tries first, so that masked output comes to
// its end.
var closers = []string{"\"", "}", "]", ":", ",", "</", ">", "\n", " ", "0"}

// allowed picks the token that continues the text at place best among those that ok admits, -1 when it admits none. In
// this order:
//  1. the token that continues the text, or the longest whose bytes do;
//  2. the token that comes soonest in the rest of the stretch, the longest of several: the text before it is skipped;
//  3. the next special token of the text that is admitted;
//  4. a token that ends the turn;
//  5. a closing character, by the list above;
//  6. the shortest token, of several the one with the lowest id.
func (p *plan) allowed(place int, ok func(int32) bool) int32 {
	if t := p.next(place); ok(t) {
		return t
	}
	stretch := p.stretch(place)
	for i := range stretch {
		for n := min(longestToken, len(stretch)-i); n > 0; n-- {
			if t, found := p.tok.ID(string(stretch[i : i+n])); found && !special(p.tok, t) && ok(t) {
				return t
			}
		}
	}
	for k := p.at(place); k < len(p.tokens); k++ {
		if t := p.tokens[k]; special(p.tok, t) && p.starts[k] >= place && ok(t) {
			return t
		}
	}
	for _, t := range p.tok.StopTokens() {
		if ok(t) {
			return t
		}
	}
	for _, text := range closers {
		if t, found := p.tok.ID(text); found && ok(t) {
			return t
		}
	}
	best, length := int32(-1), 0
	for t := range int32(p.tok.VocabSize()) {
		if n := len(p.tok.TokenBytes(t)); n > 0 && (best < 0 || n < length) && ok(t) {
			best, length = t, n
		}
	}
	return best
}
