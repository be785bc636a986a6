package toolcall

import (
	"bytes"
	"encoding/json"
	"strings"
)

// maxDepth bounds the nesting of JSON that a model writes.
const maxDepth = 256

// scanner reads one JSON value byte by byte and copies it. What it has copied can be completed to valid JSON at any
// time: commas, escapes, numbers and words wait until they are whole. Control characters inside strings, which models
// write, are escaped.
type scanner struct {
	out   []byte // copied, for the caller to take
	state scanState
	stack []byte // open brackets
	hold  []byte // a comma and the whitespace around it
	word  []byte // a number, word or escape in progress
	key   bool   // the present string is a key
}

type scanState uint8

const (
	scanValue  scanState = iota // before a value
	scanFirst                   // after '[': a value or the end
	scanKey                     // after '{': a key or the end
	scanNext                    // after a comma in an object: a key
	scanColon                   // after a key
	scanAfter                   // after a value inside a bracket
	scanString                  // in a string
	scanEscape                  // in an escape
	scanWord                    // in a number or a word
	scanDone
)

// push reads a byte. over: the value ends with it; before: a number or word ended before it.
func (s *scanner) push(c byte) verdict {
	switch s.state {
	case scanString:
		return s.inString(c)
	case scanEscape:
		return s.inEscape(c)
	case scanWord:
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '.' || c == '+' || c == '-' || c == 'E' {
			s.word = append(s.word, c)
			return more
		}
		if !json.Valid(s.word) {
			return bad
		}
		s.settle(s.word...)
		s.word = s.word[:0]
		if s.valueEnds(); s.state == scanDone {
			return before
		}
	}
	if isSpace(c) {
		if len(s.hold) > 0 {
			s.hold = append(s.hold, c)
		} else {
			s.out = append(s.out, c)
		}
		return more
	}
	return s.structure(c)
}

// structure reads a byte between values.
func (s *scanner) structure(c byte) verdict {
	switch s.state {
	case scanColon:
		if c != ':' {
			return bad
		}
		s.out, s.state = append(s.out, c), scanValue
		return more
	case scanAfter:
		if c == ',' {
			s.hold, s.state = append(s.hold, c), scanValue
			if s.top() == '{' {
				s.state = scanNext
			}
			return more
		}
		return s.close(c)
	case scanKey, scanNext:
		if c == '"' {
			s.key, s.state = true, scanString
			s.settle(c)
			return more
		}
		if s.state == scanKey {
			return s.close(c)
		}
		return bad
	case scanFirst:
		if c == ']' {
			return s.close(c)
		}
	}
	switch {
	case c == '{' || c == '[':
		if len(s.stack) >= maxDepth {
			return bad
		}
		s.settle(c)
		s.stack, s.state = append(s.stack, c), scanKey
		if c == '[' {
			s.state = scanFirst
		}
	case c == '"':
		s.key, s.state = false, scanString
		s.settle(c)
	case c == '-' || c >= '0' && c <= '9' || c == 't' || c == 'f' || c == 'n':
		s.word, s.state = append(s.word[:0], c), scanWord
	default:
		return bad
	}
	return more
}

// settle copies what waited and then b.
func (s *scanner) settle(b ...byte) {
	s.out = append(append(s.out, s.hold...), b...)
	s.hold = s.hold[:0]
}

func (s *scanner) top() byte { return s.stack[len(s.stack)-1] }

// close reads a closing bracket.
func (s *scanner) close(c byte) verdict {
	if c != s.top()+2 { // '{' and '}', '[' and ']' are two apart
		return bad
	}
	s.stack = s.stack[:len(s.stack)-1]
	s.out = append(s.out, c)
	if s.valueEnds(); s.state == scanDone {
		return over
	}
	return more
}

func (s *scanner) valueEnds() {
	s.state = scanAfter
	if len(s.stack) == 0 {
		s.state = scanDone
	}
}

func (s *scanner) inString(c byte) verdict {
	switch {
	case c == '"':
		s.out = append(s.out, c)
		if s.key {
			s.state = scanColon
			return more
		}
		if s.valueEnds(); s.state == scanDone {
			return over
		}
	case c == '\\':
		s.word, s.state = append(s.word[:0], c), scanEscape
	case c < 0x20:
		s.out = appendEscaped(s.out, c)
	default:
		s.out = append(s.out, c)
	}
	return more
}

func (s *scanner) inEscape(c byte) verdict {
	s.word = append(s.word, c)
	if n := len(s.word); n > 2 || c == 'u' {
		if n > 2 && !bytes.ContainsRune([]byte("0123456789abcdefABCDEF"), rune(c)) {
			return bad
		}
		if n < 6 {
			return more
		}
	} else if !bytes.ContainsRune([]byte(`"\/bfnrt`), rune(c)) {
		return bad
	}
	s.out, s.word, s.state = append(s.out, s.word...), s.word[:0], scanString
	return more
}

// repair completes what was copied to a valid value. Nothing may have been copied at all; then the caller must provide
// a value.
func (s *scanner) repair() {
	switch s.state {
	case scanString, scanEscape:
		s.out = append(s.out, '"')
		if s.key {
			s.out = append(s.out, ": null"...)
		}
	case scanColon:
		s.out = append(s.out, ": null"...)
	case scanValue, scanWord:
		switch {
		case s.state == scanWord && json.Valid(s.word):
			s.settle(s.word...)
		case len(s.stack) > 0 && s.top() == '{':
			s.out = append(s.out, "null"...)
		}
	}
	for len(s.stack) > 0 {
		s.out = append(s.out, s.top()+2)
		s.stack = s.stack[:len(s.stack)-1]
	}
	s.hold, s.state = s.hold[:0], scanDone
}

// cut copies what waits to be whole and is part of a value.
func (s *scanner) cut() {
	if s.state == scanWord {
		s.settle(s.word...)
	}
}

// take returns what was copied since the last call; valid until the next push.
func (s *scanner) take() []byte {
	b := s.out
	s.out = s.out[:0]
	return b
}

// CompleteObject completes the JSON of an object that was cut off: strings and brackets are closed, a key without a
// value gets null. It returns false for anything else, such as an object with a fault inside or with text after it.
func CompleteObject(text string) (string, bool) {
	text = strings.TrimSpace(text)
	if !strings.HasPrefix(text, "{") {
		return "", false
	}
	var s scanner
	for i := range len(text) {
		if v := s.push(text[i]); v != more && (v != over || i < len(text)-1) {
			return "", false
		}
	}
	s.repair()
	out := string(s.out)
	return out, json.Valid([]byte(out))
}
