package toolcall

import (
	"bytes"
	"encoding/json"
	"strings"
)

// signature reads F3: <function=NAME(k="v", n=1)></function>, after the opening bracket.
type signature struct {
	p     *Parser
	state sigState
	outer string
	lit   expect
	key   []byte
	value []byte
	quote byte
	depth int
	esc   bool
	text  bool // the value was quoted
	odd   int
}

type sigState uint8

const (
	sigKey    sigState = iota // before or in a key, or before the closing bracket
	sigEqual                  // after a key
	sigValue                  // before a value
	sigBare                   // in a value without quotes
	sigQuoted                 // in quotes
	sigAfter                  // after a quoted value
	sigEnd                    // after the closing bracket
	sigOuter                  // after everything
)

func newSignature(p *Parser, outer string) *signature { return &signature{p: p, outer: outer} }

// push implements machine.
func (s *signature) push(c byte) verdict {
	switch s.state {
	case sigBare:
		return s.inBare(c)
	case sigQuoted:
		return s.inQuotes(c)
	case sigEnd, sigOuter:
		return s.closing(c)
	}
	if isSpace(c) && len(s.key) == 0 || isSpace(c) && s.state != sigKey {
		return more
	}
	switch s.state {
	case sigKey:
		switch {
		case isName(c) && len(s.key) < maxKey:
			s.key = append(s.key, c)
			return more
		case c == ')' && len(s.key) == 0:
			return s.done()
		case c == '=' && len(s.key) > 0:
			s.state = sigValue
			return more
		case isSpace(c):
			s.state = sigEqual
			return more
		}
	case sigEqual:
		if c == '=' {
			s.state = sigValue
			return more
		}
	case sigValue:
		s.value, s.depth, s.esc = s.value[:0], 0, false
		if s.text = c == '"' || c == '\''; s.text {
			s.quote, s.state = c, sigQuoted
			return more
		}
		s.state = sigBare
		return s.inBare(c)
	case sigAfter:
		return s.next(c)
	}
	s.odd = 1
	return bad
}

// inBare reads a number, word, object or array.
func (s *signature) inBare(c byte) verdict {
	switch {
	case s.quote != 0: // a string inside of an object or array
		if !s.esc && c == s.quote {
			s.quote = 0
		}
		s.esc = !s.esc && c == '\\'
	case c == '"' && s.depth > 0:
		s.quote = c
	case c == '{' || c == '[' || c == '(':
		s.depth++
	case s.depth > 0 && (c == '}' || c == ']' || c == ')'):
		s.depth--
	case s.depth == 0 && (c == ',' || c == ')'):
		s.emit(string(bytes.TrimSpace(s.value)))
		return s.next(c)
	}
	s.value = append(s.value, c)
	return more
}

func (s *signature) inQuotes(c byte) verdict {
	if c == s.quote && !s.esc {
		s.emit(unquote(s.value, s.quote))
		s.state, s.quote = sigAfter, 0
		return more
	}
	s.esc = !s.esc && c == '\\'
	s.value = append(s.value, c)
	return more
}

// unquote reads the escapes of a string that stood between q.
func unquote(b []byte, q byte) string {
	if q == '\'' {
		b = bytes.ReplaceAll(b, []byte(`\'`), []byte(`'`))
		b = bytes.ReplaceAll(b, []byte(`"`), []byte(`\"`))
	}
	var quoted []byte
	for _, c := range b {
		if c < 0x20 {
			quoted = appendEscaped(quoted, c)
		} else {
			quoted = append(quoted, c)
		}
	}
	var out string
	if json.Unmarshal(append(append([]byte{'"'}, quoted...), '"'), &out) != nil {
		return string(b)
	}
	return out
}

// emit sends a member.
func (s *signature) emit(text string) {
	if s.p.call != nil {
		s.p.member(s.key)
		s.p.fragment = appendValue(s.p.fragment, text, s.types())
	}
	s.key = s.key[:0]
}

// types are those that the present value may have.
func (s *signature) types() kinds {
	k := s.p.call.Tool.params.of(string(s.key))
	if k == 0 && !s.text {
		k = kindInteger | kindNumber | kindBoolean | kindNull | kindObject | kindArray | kindString
	}
	return k
}

// next reads what follows a value.
func (s *signature) next(c byte) verdict {
	switch c {
	case ',':
		s.state = sigKey
		return more
	case ')':
		return s.done()
	}
	s.odd = 1
	return bad
}

func (s *signature) done() verdict {
	s.state, s.lit = sigEnd, expecting(">")
	return more
}

// closing reads the marks after the closing bracket.
func (s *signature) closing(c byte) verdict {
	mark, v := s.lit.push(c)
	if v != over {
		return v
	}
	switch mark {
	case ">":
		s.lit = expecting("</function>")
		return more
	case "</function>":
		if s.p.call != nil {
			s.p.closeObject()
		}
		if s.outer != "" {
			s.state, s.lit = sigOuter, expecting(s.outer)
			return more
		}
	}
	s.p.end()
	return over
}

// pending implements machine.
func (s *signature) pending() int {
	if s.state == sigEnd || s.state == sigOuter {
		return len(s.lit.buf)
	}
	return s.odd
}

// ending implements machine.
func (s *signature) ending() ending {
	if s.state == sigOuter {
		return endComplete
	}
	return endOpen
}

// cut implements machine.
func (s *signature) cut() {
	text := ""
	switch s.state {
	case sigQuoted:
		b := s.value
		if s.esc { // half of an escape
			b = b[:len(b)-1]
		}
		text = unquote(b, s.quote)
	case sigBare:
		text = string(s.value)
	}
	if strings.TrimSpace(text) != "" {
		s.p.member(s.key)
		s.p.fragment = appendCut(s.p.fragment, text, s.types())
	}
}

// repair implements machine.
func (s *signature) repair() {
	if s.state == sigQuoted || s.state == sigBare {
		s.emit(string(s.value))
	}
	s.p.closeObject()
}
