package toolcall

import (
	"bytes"
	"strings"
)

// Marks that open and close regions.
const (
	openToolCall       = "<tool_call>"
	closeToolCall      = "</tool_call>"
	openFunction       = "<function="
	openToolCode       = "<tool_code>"
	closeToolCode      = "</tool_code>"
	openFunctionCalls  = "<function_calls>"
	closeFunctionCalls = "</function_calls>"
	openGemma          = "<|tool_call>"
	closeGemma         = "<tool_call|>"
)

// openers are looked for in every text. Each begins with the only '<' it has, so that a failed one leaves nothing to
// look at again but the byte that failed.
var openers = []string{openToolCall, openFunction, openToolCode, openFunctionCalls, openDeepSeek}

// outside reads a byte that is in no region.
func (p *Parser) outside(c byte) {
	if len(p.opener) > 0 {
		p.opener = append(p.opener, c)
		mark, part := p.mark()
		switch {
		case mark != "":
			p.open(mark)
			return
		case part:
			return
		}
		p.opener = p.opener[:len(p.opener)-1]
		p.lose(p.opener, p.pos-1)
		p.opener = p.opener[:0]
	}
	switch {
	case c == '<':
		p.opener = append(p.opener, c)
	case p.edge && isSpace(c):
		p.blank = append(p.blank, c)
	case p.calls == 0 && !p.shown && (c == '{' || c == '[' || c == '`'):
		p.begin(newEnvelope(p, BareJSON, ""), string(c))
		p.feed(c)
	default:
		p.release(p.pos - 1)
		p.one[0] = c
		p.text(p.one[:], p.pos)
	}
}

// mark finds the mark that the opener spells, or whether it may still become one.
func (p *Parser) mark() (mark string, part bool) {
	try := func(m string) {
		if strings.HasPrefix(m, string(p.opener)) {
			part = true
			if len(m) == len(p.opener) {
				mark = m
			}
		}
	}
	for _, m := range openers {
		try(m)
	}
	if p.cfg.Family == GemmaFamily {
		try(openGemma)
	}
	if p.stray {
		try(closeToolCall)
	}
	return mark, part
}

// OpensCall returns the mark in which a call begins that b spells, or whether b may still become one. Inside of another
// call the marks that only occur within calls do not count.
func OpensCall(b []byte, inside bool) (mark string, part bool) {
	try := func(m string) {
		if !bytes.HasPrefix([]byte(m), b) {
			return
		}
		part = true
		if len(m) == len(b) {
			mark = m
		}
	}
	for _, m := range openers {
		if m != openFunction || !inside {
			try(m)
		}
	}
	try(openGemma)
	return mark, part
}

// open enters the region of a mark.
func (p *Parser) open(mark string) {
	p.opener = p.opener[:0]
	switch mark {
	case closeToolCall:
		p.stray, p.blank = false, p.blank[:0]
	case openToolCall:
		p.begin(newWrapped(p), mark)
	case openFunction:
		p.begin(newTagged(p, &bareForm, stateName), mark)
	case openToolCode:
		p.begin(newEnvelope(p, ToolCode, closeToolCode), mark)
	case openFunctionCalls:
		p.begin(newTagged(p, &invokeForm, stateNext), mark)
	case openDeepSeek:
		p.begin(newDeepSeek(p), mark)
	case openGemma:
		p.begin(newGemma(p), mark)
	}
}

// begin starts a region with the bytes that opened it.
func (p *Parser) begin(m machine, opened string) {
	p.machine, p.region, p.from = m, append(p.region[:0], opened...), p.pos-len(opened)
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// isName reports whether c may stand in a tool's name.
func isName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' ||
		c == '.' || c == ':' || c == '-'
}

const maxName = 128

// expect reads one of several marks, which may stand after whitespace.
type expect struct {
	marks []string
	buf   []byte
}

func expecting(marks ...string) expect { return expect{marks: marks} }

// push returns the mark that is complete, else more or bad.
func (e *expect) push(c byte) (mark string, v verdict) {
	if len(e.buf) == 0 && isSpace(c) {
		return "", more
	}
	e.buf = append(e.buf, c)
	part := false
	for _, m := range e.marks {
		if bytes.HasPrefix([]byte(m), e.buf) {
			if len(m) == len(e.buf) {
				return m, over
			}
			part = true
		}
	}
	if part {
		return "", more
	}
	return "", bad
}
