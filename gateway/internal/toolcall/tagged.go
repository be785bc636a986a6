package toolcall

import (
	"bytes"
	"strings"
)

// maxKey bounds the name of a parameter.
const maxKey = 1024

// form is a way to write calls with a tag for each parameter.
type form struct {
	format Format
	// next opens a further call in the same region, outer closes the region; both empty when the call is the region.
	next, outer string
	nameEnd     string
	param       string
	keyEnd      string
	valueOpen   string // between key and value; empty when the value follows at once
	valueEnd    string
	end         string
	// keepSpace leaves string values as they are; otherwise one newline at each end belongs to the markup.
	keepSpace bool
}

var (
	qwenForm = form{format: QwenXML, next: openFunction, outer: closeToolCall, nameEnd: ">",
		param: "<parameter=", keyEnd: ">",
		valueEnd: "</parameter>", end: "</function>"}
	bareForm = form{format: BareXML, nameEnd: ">", param: "<parameter=", keyEnd: ">",
		valueEnd: "</parameter>", end: "</function>"}

	lagunaForm = form{format: Laguna, param: "<arg_key>", keyEnd: "</arg_key>", valueOpen: "<arg_value>",
		valueEnd: "</arg_value>",
		end:      closeToolCall, keepSpace: true}
	invokeForm = form{format: FunctionCalls, next: `<invoke name="`, outer: closeFunctionCalls, nameEnd: `">`,
		param:  `<parameter name="`,
		keyEnd: `">`, valueEnd: "</parameter>", end: "</invoke>"}
)

// tagState is where a tagged machine stands.
type tagState uint8

const (
	stateFirst    tagState = iota // after <tool_call>: the next character decides the format
	stateNext                     // before the mark that opens a call, or the one that closes the region
	stateName                     // in the name
	stateNameEnd                  // after the name
	stateBody                     // before a parameter or the end of the call
	stateKey                      // in a parameter's name
	stateValueGap                 // between a parameter's name and its value
	stateValue
	stateOuter   // after a complete call, before the outer closing mark
	stateJSON    // in arguments that are one JSON object in place of parameters, as Llama 3 writes them
	stateJSONEnd // after them
)

// tagged reads F1, F2, F8 and F9.
type tagged struct {
	p     *Parser
	form  *form
	state tagState
	lit   expect
	name  []byte
	key   []byte

	value   []byte // not handed over yet
	matched int    // bytes at the end of value that may be the closing mark
	types   kinds
	stream  bool // the value goes out while it comes in
	null    bool // the value may still be the literal null
	started bool // the value is going out: its string is open
	first   bool // nothing of the value was read
	odd     int  // bytes that did not fit outside of marks
	scan    scanner
	fresh   bool // nothing stands after the call's name
	object  bool // the arguments are one JSON object
}

// newWrapped is at the start of F1, F4 or F8.
func newWrapped(p *Parser) *tagged {
	return &tagged{p: p, form: &qwenForm, state: stateFirst}
}

func newTagged(p *Parser, f *form, s tagState) *tagged {
	t := &tagged{p: p, form: f}
	t.enter(s)
	return t
}

// enter changes the state.
func (t *tagged) enter(s tagState) {
	t.state = s
	switch s {
	case stateNext:
		if t.p.between || t.form.format == FunctionCalls {
			t.lit = expecting(t.form.next, t.form.outer)
		} else {
			t.lit = expecting(t.form.next)
		}
	case stateName:
		t.name, t.object = t.name[:0], false
	case stateNameEnd:
		t.lit = expecting(t.form.param, t.form.end)
	case stateBody:
		t.lit = expecting(t.form.param, t.form.end)
	case stateKey:
		t.key = t.key[:0]
	case stateValueGap:
		t.lit = expecting(t.form.valueOpen)
	case stateValue:
		t.startValue()
	case stateOuter:
		t.lit = expecting(t.form.outer, t.form.next)
	case stateJSON:
		t.scan, t.object = scanner{}, true
	case stateJSONEnd:
		t.lit = expecting(t.form.end)
	}
}

// push implements machine.
func (t *tagged) push(c byte) verdict {
	switch t.state {
	case stateFirst:
		return t.choose(c)
	case stateName:
		return t.inName(c)
	case stateKey:
		return t.inKey(c)
	case stateValue:
		return t.inValue(c)
	case stateJSON:
		return t.inJSON(c)
	case stateBody:
		if c == '{' && len(t.lit.buf) == 0 && t.fresh && t.form.param == "<parameter=" {
			t.enter(stateJSON)
			return t.inJSON(c)
		}
	}
	mark, v := t.lit.push(c)
	if v != over {
		return v
	}
	t.lit.buf = t.lit.buf[:0]
	return t.read(mark)
}

// choose picks the format after <tool_call>.
func (t *tagged) choose(c byte) verdict {
	switch f := t.p.cfg.Family; {
	case isSpace(c):
		return more
	case c == '<':
		t.enter(stateNext)
		return t.push(c)
	case c == '{' || c == '[':
		t.p.machine = newEnvelope(t.p, Hermes, closeToolCall)
		return t.p.machine.push(c)
	case isName(c) && (f == LagunaFamily || f == Generic):
		t.form = &lagunaForm
		t.enter(stateName)
		return t.push(c)
	}
	return t.reject()
}

// reject refuses the present byte outside of a mark.
func (t *tagged) reject() verdict {
	t.odd = 1
	return bad
}

func (t *tagged) inName(c byte) verdict {
	if isName(c) && len(t.name) < maxName {
		t.name = append(t.name, c)
		return more
	}
	if len(t.name) == 0 {
		return t.reject()
	}
	switch {
	case t.form.nameEnd == "" && (isSpace(c) || c == '<'):
		t.enter(stateNameEnd)
		return t.push(c)
	case t.form.nameEnd != "" && c == t.form.nameEnd[0]:
		if len(t.form.nameEnd) > 1 {
			t.state, t.lit = stateNameEnd, expecting(t.form.nameEnd)
			return t.push(c)
		}
		t.announce()
		t.enter(stateBody)
		return more
	case c == '(' && t.form.param == "<parameter=":
		s := newSignature(t.p, t.form.outer)
		t.p.machine = s
		t.p.announce(string(t.name), Signature)
		return more
	}
	return t.reject()
}

func (t *tagged) announce() {
	t.p.announce(string(t.name), t.form.format)
	t.fresh = true
}

// inJSON reads a byte of arguments that are one JSON object.
func (t *tagged) inJSON(c byte) verdict {
	v := t.scan.push(c)
	b := t.scan.take()
	if t.p.call != nil {
		t.p.fragment = append(t.p.fragment, b...)
	}
	switch v {
	case bad:
		return t.reject()
	case over:
		t.enter(stateJSONEnd)
	}
	return more
}

// read acts on a complete mark.
func (t *tagged) read(mark string) verdict {
	if t.state == stateNameEnd {
		t.announce()
		if mark == t.form.nameEnd {
			t.enter(stateBody)
			return more
		}
	}
	switch mark {
	case t.form.param:
		t.fresh = false
		t.enter(stateKey)
	case t.form.valueOpen:
		t.enter(stateValue)
	case t.form.end:
		return t.complete()
	case t.form.next:
		if t.state == stateOuter {
			t.p.endAt(len(t.p.region) - len(mark))
		}
		t.enter(stateName)
	case t.form.outer:
		if t.state == stateOuter {
			t.p.end()
		}
		return over
	}
	return more
}

// complete ends the arguments of a call.
func (t *tagged) complete() verdict {
	if t.p.call != nil && !t.object {
		t.p.closeObject()
	}
	switch {
	case t.form.outer == "":
		t.p.end()
		return over
	case t.form.format == FunctionCalls:
		t.p.end()
		t.enter(stateNext)
	default:
		t.enter(stateOuter)
	}
	return more
}

func (t *tagged) inKey(c byte) verdict {
	if c == '\n' && t.form.valueOpen == "" || len(t.key) > maxKey {
		return t.reject()
	}
	t.key = append(t.key, c)
	if !bytes.HasSuffix(t.key, []byte(t.form.keyEnd)) {
		return more
	}
	t.key = t.key[:len(t.key)-len(t.form.keyEnd)]
	if t.form.valueOpen != "" {
		t.enter(stateValueGap)
	} else {
		t.enter(stateValue)
	}
	return more
}

func (t *tagged) startValue() {
	t.value, t.matched, t.first, t.started, t.types = t.value[:0], 0, true, false, 0
	if t.p.call != nil {
		t.types = t.p.call.Tool.params.of(string(t.key))
	}
	t.null = t.types == 0
	t.stream = t.types == 0 || t.types == kindString
	if t.types == kindString {
		t.open()
	}
}

// open starts a string that goes out while it comes in.
func (t *tagged) open() {
	t.started, t.null = true, false
	if t.p.call != nil {
		t.p.member(t.key)
		t.p.fragment = append(t.p.fragment, '"')
	}
}

// inValue reads a byte of a value. The closing mark begins with the only '<' it has.
func (t *tagged) inValue(c byte) verdict {
	if t.first {
		t.first = false
		if c == '\n' && !t.form.keepSpace {
			return more
		}
	}
	t.value = append(t.value, c)
	end := t.form.valueEnd
	switch {
	case c == end[t.matched]:
		t.matched++
	case c == '<':
		t.matched = 1
	default:
		t.matched = 0
	}
	if t.matched == len(end) {
		t.value = t.value[:len(t.value)-len(end)]
		t.matched = 0
		t.endValue()
		t.enter(stateBody)
		return more
	}
	if t.stream {
		t.hand(len(t.value) - t.held())
	}
	return more
}

// held is the number of bytes at the end of value that may belong to the markup.
func (t *tagged) held() int {
	n := t.matched
	if at := len(t.value) - n; !t.form.keepSpace && at > 0 && t.value[at-1] == '\n' {
		n++
	}
	return n
}

// hand sends the first n bytes of a value that is a string.
func (t *tagged) hand(n int) {
	if !t.started {
		if n == 0 || t.null && bytes.HasPrefix([]byte("null"), t.value[:n]) {
			return
		}
		t.open()
	}
	if t.p.call != nil {
		for _, c := range t.value[:n] {
			t.p.fragment = appendEscaped(t.p.fragment, c)
		}
	}
	t.value = t.value[:copy(t.value, t.value[n:])]
}

// endValue sends what is left of a value.
func (t *tagged) endValue() {
	n := len(t.value)
	if !t.form.keepSpace && n > 0 && t.value[n-1] == '\n' {
		n--
	}
	if t.p.call == nil {
		return
	}
	if t.stream && !(t.null && string(t.value[:n]) == "null") {
		if !t.started {
			t.open()
		}
		t.hand(n)
		t.p.fragment = append(t.p.fragment, '"')
		return
	}
	t.p.member(t.key)
	text := t.value[:n]
	if t.form.keepSpace && t.types&kindString == 0 {
		text = bytes.TrimSpace(text)
	}
	t.p.fragment = appendValue(t.p.fragment, string(text), t.types)
}

// pending implements machine.
func (t *tagged) pending() int {
	switch t.state {
	case stateValue:
		return t.matched
	case stateFirst, stateName, stateKey, stateJSON:
		return t.odd
	}
	return len(t.lit.buf)
}

// ending implements machine.
func (t *tagged) ending() ending {
	switch t.state {
	case stateOuter:
		return endComplete
	case stateJSONEnd:
		return endOptional
	case stateBody:
		if t.form.format != FunctionCalls {
			return endOptional
		}
	}
	return endOpen
}

// cut implements machine.
func (t *tagged) cut() {
	switch t.state {
	case stateJSON:
		t.scan.cut()
		t.p.fragment = append(t.p.fragment, t.scan.take()...)
	case stateValue:
		n := len(t.value) - t.held()
		switch text := string(t.value[:n]); {
		case t.stream && !t.started && n > 0:
			t.open()
			t.hand(n)
		case !t.stream && strings.TrimSpace(text) != "":
			t.p.member(t.key)
			t.p.fragment = appendCut(t.p.fragment, text, t.types)
		}
	}
}

// repair implements machine.
func (t *tagged) repair() {
	if t.state == stateValue {
		t.value = t.value[:len(t.value)-t.matched]
		t.endValue()
	}
	if t.object {
		t.scan.repair()
		t.p.fragment = append(t.p.fragment, t.scan.take()...)
		return
	}
	t.p.closeObject()
}
