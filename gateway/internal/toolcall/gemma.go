package toolcall

import "bytes"

// GemmaMarks are the marks of F7; Gemma's vocabulary has a control token for each.
var GemmaMarks = []string{openGemma, closeGemma, quoteGemma}

// quoteGemma stands around strings in F7.
const quoteGemma = `<|"|>`

// gemma reads F7: call:NAME{key:value,…}, after the opening mark. Its arguments are written as JSON while they
// come in.
type gemma struct {
	p     *Parser
	state gemState
	lit   expect
	name  []byte
	key   []byte
	value []byte // of a string: not handed over yet; of a number or word: all of it
	match int    // bytes at the end of value that may be the closing quote
	stack []gemOpen
	odd   int
}

// gemOpen is an open object or array.
type gemOpen struct {
	array bool
	n     int // members so far
}

type gemState uint8

const (
	gemHead    gemState = iota // before call:
	gemName                    // in the name
	gemKey                     // before or in a key, or before the end
	gemQuoted                  // in a key with quotes
	gemColon                   // after a key with quotes
	gemValue                   // before a value
	gemOpening                 // in the mark that opens a string or quoted key
	gemString                  // in a string
	gemWord                    // in a number or word
	gemAfter                   // after a value
	gemClose                   // after the arguments
)

func newGemma(p *Parser) *gemma { return &gemma{p: p, lit: expecting("call:")} }

// push implements machine.
func (g *gemma) push(c byte) verdict {
	switch g.state {
	case gemHead, gemOpening, gemClose:
		return g.inMark(c)
	case gemName:
		return g.inName(c)
	case gemString, gemQuoted:
		return g.inString(c)
	case gemWord:
		return g.inWord(c)
	case gemKey:
		return g.inKey(c)
	}
	if isSpace(c) {
		return more
	}
	switch {
	case g.state == gemColon && c == ':':
		g.state = gemValue
		return more
	case g.state == gemValue:
		return g.startValue(c)
	case g.state == gemAfter && c == ',':
		g.state = gemValue
		if !g.top().array {
			g.enterKey()
		}
		return more
	case g.state == gemAfter:
		return g.close(c)
	}
	return g.reject()
}

func (g *gemma) reject() verdict {
	g.odd = 1
	return bad
}

func (g *gemma) top() *gemOpen { return &g.stack[len(g.stack)-1] }

// inMark reads a fixed mark.
func (g *gemma) inMark(c byte) verdict {
	_, v := g.lit.push(c)
	if v != over {
		return v
	}
	g.lit.buf = g.lit.buf[:0]
	switch g.state {
	case gemHead:
		g.state = gemName
	case gemOpening:
		g.value, g.match = g.value[:0], 0
		if len(g.stack) > 0 && !g.top().array && g.key == nil {
			g.state = gemQuoted
			break
		}
		g.begin()
		g.write('"')
		g.state = gemString
	case gemClose:
		g.p.end()
		return over
	}
	return more
}

func (g *gemma) inName(c byte) verdict {
	switch {
	case isName(c) && len(g.name) < maxName:
		g.name = append(g.name, c)
		return more
	case c == '{' && len(g.name) > 0:
		g.p.announce(string(g.name), Gemma)
		g.write('{')
		g.stack = append(g.stack, gemOpen{})
		g.enterKey()
		return more
	}
	return g.reject()
}

func (g *gemma) enterKey() { g.state, g.key, g.value = gemKey, nil, g.value[:0] }

// inKey reads a bare key up to its colon.
func (g *gemma) inKey(c byte) verdict {
	switch {
	case len(g.value) == 0 && isSpace(c):
		return more
	case len(g.value) == 0 && c == '}' && g.top().n == 0:
		return g.close(c)
	case len(g.value) == 0 && c == '<':
		g.state, g.lit = gemOpening, expecting(quoteGemma)
		return g.inMark(c)
	case c == ':' && len(g.value) > 0:
		g.key, g.state = bytes.Clone(bytes.TrimSpace(g.value)), gemValue
		return more
	case c == '{' || c == '}' || c == ',' || c == '<' || len(g.value) > maxKey:
		return g.reject()
	}
	g.value = append(g.value, c)
	return more
}

func (g *gemma) startValue(c byte) verdict {
	switch c {
	case '<':
		g.state, g.lit = gemOpening, expecting(quoteGemma)
		return g.inMark(c)
	case '{', '[':
		if len(g.stack) >= maxDepth {
			return g.reject()
		}
		g.begin()
		g.write(c)
		g.stack = append(g.stack, gemOpen{array: c == '['})
		if g.enterKey(); c == '[' {
			g.state = gemValue
		}
		return more
	case ']':
		if g.top().array && g.top().n == 0 {
			return g.close(c)
		}
		return g.reject()
	case ',', '}', ':':
		return g.reject()
	}
	g.value, g.state = append(g.value[:0], c), gemWord
	return more
}

// gemWords are the types of words, but for true and false, which have one spelling.
const gemWords = kindInteger | kindNumber | kindNull | kindString

// inWord reads a number or a word; what is neither becomes a string.
func (g *gemma) inWord(c byte) verdict {
	if c != ',' && c != '}' && c != ']' && c != '<' {
		g.value = append(g.value, c)
		return more
	}
	if c == '<' {
		return g.reject()
	}
	g.endWord()
	return g.push(c)
}

func (g *gemma) endWord() {
	g.begin()
	switch text := string(bytes.TrimSpace(g.value)); text {
	case "true", "false":
		g.write([]byte(text)...)
	default:
		g.write(appendValue(nil, text, gemWords)...)
	}
	g.state = gemAfter
}

// inString reads a string or a quoted key. The closing quote begins with the only '<' it has.
func (g *gemma) inString(c byte) verdict {
	g.value = append(g.value, c)
	switch {
	case c == quoteGemma[g.match]:
		g.match++
	case c == '<':
		g.match = 1
	default:
		g.match = 0
	}
	if g.match < len(quoteGemma) {
		if g.state == gemString {
			g.hand(len(g.value) - g.match)
		}
		return more
	}
	g.value, g.match = g.value[:len(g.value)-len(quoteGemma)], 0
	if g.state == gemQuoted {
		g.key, g.state = bytes.Clone(g.value), gemColon
		return more
	}
	g.endString()
	return more
}

func (g *gemma) endString() {
	g.hand(len(g.value))
	g.write('"')
	g.state = gemAfter
}

// hand sends the first n bytes of a string.
func (g *gemma) hand(n int) {
	for _, c := range g.value[:n] {
		if g.p.call != nil {
			g.p.fragment = appendEscaped(g.p.fragment, c)
		}
	}
	g.value = g.value[:copy(g.value, g.value[n:])]
}

// begin writes what stands before a value: comma and key.
func (g *gemma) begin() {
	t := g.top()
	if t.n > 0 {
		g.write([]byte(", ")...)
	}
	t.n++
	if !t.array {
		g.write(appendQuoted(nil, string(g.key))...)
		g.write([]byte(": ")...)
	}
}

func (g *gemma) write(b ...byte) {
	if g.p.call != nil {
		g.p.fragment = append(g.p.fragment, b...)
	}
}

// close reads a closing bracket.
func (g *gemma) close(c byte) verdict {
	want := byte('}')
	if g.top().array {
		want = ']'
	}
	if c != want {
		return g.reject()
	}
	g.pop()
	if len(g.stack) == 0 {
		g.state, g.lit = gemClose, expecting(closeGemma)
	}
	return more
}

func (g *gemma) pop() {
	end := byte('}')
	if g.top().array {
		end = ']'
	}
	g.write(end)
	g.stack = g.stack[:len(g.stack)-1]
	g.state = gemAfter
}

// pending implements machine.
func (g *gemma) pending() int {
	switch g.state {
	case gemHead, gemOpening, gemClose:
		return len(g.lit.buf)
	case gemString, gemQuoted:
		return g.match
	}
	return g.odd
}

// ending implements machine.
func (g *gemma) ending() ending {
	if g.state == gemClose {
		return endComplete
	}
	return endOpen
}

// cut implements machine.
func (g *gemma) cut() {
	switch text := bytes.TrimSpace(g.value); {
	case g.state == gemString:
		g.hand(len(g.value) - g.match)
	case g.state == gemWord && len(text) > 0:
		g.begin()
		g.write(appendCut(nil, string(text), gemWords|kindBoolean)...)
	case g.state == gemKey && len(text) > 0, g.state == gemQuoted:
		g.value = g.value[:len(g.value)-g.match]
		g.cutKey(g.value)
	case (g.state == gemColon || g.state == gemValue) && !g.top().array:
		g.cutKey(g.key)
		g.write('"')
	}
}

// cutKey writes a key whose value has not come, up to its closing quote.
func (g *gemma) cutKey(key []byte) {
	if g.top().n > 0 {
		g.write([]byte(", ")...)
	}
	key = appendQuoted(nil, string(key))
	g.write(key[:len(key)-1]...)
}

// repair implements machine.
func (g *gemma) repair() {
	switch g.state {
	case gemString:
		g.value = g.value[:len(g.value)-g.match]
		g.endString()
	case gemWord:
		g.endWord()
	}
	for len(g.stack) > 0 {
		g.pop()
	}
}
