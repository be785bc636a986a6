package toolcall

import (
	"bytes"
	"encoding/json"
	"strings"
)

// envelope reads F4, F5 and F6: a JSON object with name and arguments, or an array of such objects.
type envelope struct {
	p      *Parser
	format Format
	state  envState
	array  bool
	lit    expect // the mark that closes the region; F4 and F5
	fence  []byte // what opened a code fence; F6
	odd    int

	depth    int // open objects: 1, or 2 inside of "function"
	key      string
	scan     scanner
	name     string
	named    bool
	args     []byte // arguments that were not handed over yet, or all of them for F6
	argsDone bool
	text     bool // the arguments are a string that holds JSON
	null     bool // the arguments are null
	item     int  // where the present object starts in the region
	guesses  []guess
}

// guess is a call of F6, which counts only when the whole text is made of such.
type guess struct {
	name string
	args []byte
	raw  string
}

type envState uint8

const (
	envStart envState = iota // before the object or array
	envFence                 // in the line that opens a code fence
	envItem                  // before an object of an array
	envKey                   // after '{': a key or the end
	envNext                  // after a comma: a key
	envInKey                 // in a key
	envColon                 // after a key
	envValue                 // before a value
	envSkip                  // in a value that says nothing
	envName                  // in the name
	envArgs                  // in the arguments
	envAfter                 // after a value
	envComma                 // after an object of an array
	envClose                 // after everything: the closing mark
)

func newEnvelope(p *Parser, f Format, closer string) *envelope {
	return &envelope{p: p, format: f, lit: expecting(closer)}
}

// bare reports F6: a guess from the first character on.
func (e *envelope) bare() bool { return e.format == BareJSON }

// push implements machine.
func (e *envelope) push(c byte) verdict {
	switch e.state {
	case envInKey, envSkip, envName, envArgs:
		return e.inside(c)
	case envClose:
		return e.closing(c)
	case envFence:
		return e.inFence(c)
	}
	if isSpace(c) {
		return more
	}
	switch e.state {
	case envStart:
		switch {
		case c == '[':
			e.array, e.state = true, envItem
			return more
		case c == '`' && e.bare() && len(e.fence) == 0:
			e.fence, e.state = append(e.fence, c), envFence
			return more
		}
		return e.begin(c)
	case envItem:
		return e.begin(c)
	case envKey, envNext:
		if c == '"' {
			e.state, e.scan = envInKey, scanner{out: e.scan.out[:0]}
			return e.inside(c)
		}
		if c == '}' && e.state == envKey {
			return e.pop()
		}
	case envColon:
		if c == ':' {
			e.state = envValue
			return more
		}
	case envValue:
		return e.value(c)
	case envAfter:
		switch c {
		case ',':
			e.state = envNext
			return more
		case '}':
			return e.pop()
		}
	case envComma:
		switch c {
		case ',':
			e.state = envItem
			return more
		case ']':
			e.state = envClose
			return more
		}
	}
	return e.reject()
}

func (e *envelope) reject() verdict {
	e.odd = 1
	return bad
}

// begin starts an object.
func (e *envelope) begin(c byte) verdict {
	if c != '{' {
		return e.reject()
	}
	e.state, e.depth, e.named, e.argsDone, e.args, e.text, e.null = envKey, 1, false, false, nil, false, false
	e.item = len(e.p.region) - 1
	return more
}

// inFence reads the rest of the line that opens a code fence: three backquotes and a word.
func (e *envelope) inFence(c byte) verdict {
	switch n := len(e.fence); {
	case n < 3 && c == '`', n >= 3 && n < 32 && (isName(c) || c == ' '):
		e.fence = append(e.fence, c)
		return more
	case n >= 3 && c == '\n':
		e.state = envStart
		return more
	}
	return e.reject()
}

// value decides by the key what a value is for.
func (e *envelope) value(c byte) verdict {
	e.scan = scanner{out: e.scan.out[:0]}
	switch key := e.key; {
	case key == "name" && !e.named:
		if c != '"' {
			return e.reject()
		}
		e.state = envName
	case (key == "arguments" || key == "parameters") && !e.argsDone:
		if c != '{' && c != '"' && c != 'n' {
			return e.reject()
		}
		e.state, e.text, e.null = envArgs, c == '"', c == 'n'
	case key == "function" && c == '{' && e.depth == 1:
		e.depth, e.state = 2, envKey
		return more
	case e.bare() && key != "type" && key != "id":
		// Some other JSON.
		return e.reject()
	default:
		e.state = envSkip
	}
	return e.inside(c)
}

// inside reads a byte of a string or value.
func (e *envelope) inside(c byte) verdict {
	v := e.scan.push(c)
	switch e.state {
	case envInKey:
		if v == over {
			e.state = envColon
			if json.Unmarshal(e.scan.take(), &e.key) != nil {
				e.key = ""
			}
		}
	case envName:
		if v == over {
			return e.gotName()
		}
	case envArgs:
		if b := e.scan.take(); len(b) > 0 {
			e.args = append(e.args, b...)
		}
		e.drain()
		if v == over || v == before {
			e.argsDone, e.state = true, envAfter
		}
	case envSkip:
		e.scan.take()
		if v == over || v == before {
			e.state = envAfter
		}
	}
	switch v {
	case before:
		return e.push(c)
	case over:
		return more
	case bad:
		return e.reject()
	}
	return more
}

func (e *envelope) gotName() verdict {
	e.state, e.named = envAfter, true
	if json.Unmarshal(e.scan.take(), &e.name) != nil {
		return e.reject()
	}
	if e.bare() {
		if e.p.cfg.Set.Get(e.name) == nil {
			return e.reject()
		}
		return more
	}
	e.p.announce(e.name, e.format)
	e.drain()
	return more
}

// drain hands over arguments that are an object.
func (e *envelope) drain() {
	if e.p.call != nil && !e.text && !e.null {
		e.p.fragment = append(e.p.fragment, e.args...)
		e.p.fields += len(e.args)
		e.args = e.args[:0]
	}
}

// pop ends an object.
func (e *envelope) pop() verdict {
	if e.depth--; e.depth > 0 {
		e.state = envAfter
		return more
	}
	if !e.named {
		return e.reject()
	}
	if e.bare() {
		raw := e.p.region[e.item:]
		e.guesses = append(e.guesses, guess{e.name, e.object(), string(raw)})
	} else if e.p.call != nil {
		e.settle()
	}
	if !e.array {
		e.state = envClose
		return more
	}
	e.state = envComma
	if !e.bare() {
		e.p.end()
	}
	return more
}

// settle completes the arguments of the present call.
func (e *envelope) settle() {
	if e.p.fields > 0 {
		return // handed over while they came
	}
	e.p.fragment = append(e.p.fragment, e.object()...)
}

// object gives arguments that came as text, or the empty object.
func (e *envelope) object() []byte {
	if len(e.args) > 0 && e.args[0] == '{' {
		return e.args
	}
	if e.text {
		var s string
		if json.Unmarshal(e.args, &s) == nil {
			if b := bytes.TrimSpace([]byte(s)); len(b) == 0 || b[0] == '{' && json.Valid(b) {
				if len(b) > 0 {
					return b
				}
				return []byte("{}")
			}
		}
		e.p.fail("the arguments of the call of %s are no JSON object", e.name)
	}
	return []byte("{}")
}

// closing reads after everything.
func (e *envelope) closing(c byte) verdict {
	if e.bare() {
		if isSpace(c) || c == '`' && len(e.fence) > 0 {
			return more
		}
		return e.reject()
	}
	_, v := e.lit.push(c)
	if v == over && (e.p.call != nil || e.p.mute) {
		e.p.end()
	}
	return v
}

// deliver makes calls of the guesses once the text has ended after them.
func (e *envelope) deliver() {
	if e.state != envClose {
		return
	}
	if len(e.guesses) == 1 {
		e.guesses[0].raw = string(e.p.region)
	}
	for _, g := range e.guesses {
		e.p.region = append(e.p.region[:0], g.raw...)
		e.p.announce(g.name, BareJSON)
		e.p.fragment = append(e.p.fragment, g.args...)
		e.p.end()
		if e.p.Done() {
			break
		}
	}
}

// pending implements machine.
func (e *envelope) pending() int {
	if e.state == envClose && !e.bare() {
		return len(e.lit.buf)
	}
	return e.odd
}

// ending implements machine.
func (e *envelope) ending() ending {
	if e.state == envClose {
		return endComplete
	}
	return endOpen
}

// cut implements machine.
func (e *envelope) cut() {
	switch {
	case e.text && e.p.fields == 0:
		if e.state == envArgs {
			e.scan.repair()
			e.args = append(e.args, e.scan.take()...)
		}
		var s string
		if json.Unmarshal(e.args, &s) != nil {
			return
		}
		if s = strings.TrimSpace(s); s == "" {
			return
		}
		if _, ok := CompleteObject(s); ok {
			e.p.fragment = append(e.p.fragment, s...)
		}
	case e.state == envArgs && !e.text:
		e.scan.cut()
		e.args = append(e.args, e.scan.take()...)
		e.drain()
	}
}

// repair implements machine.
func (e *envelope) repair() {
	if e.state == envArgs && !e.text {
		e.scan.repair()
		e.args = append(e.args, e.scan.take()...)
		e.drain()
	}
	e.settle()
}
