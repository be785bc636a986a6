package toolcall

import (
	"encoding/json"
	"unicode/utf16"
	"unicode/utf8"
)

// InputText takes the free text of a custom tool's call out of the arguments object that the model writes, while it is
// being written: {"input":"text"}. It is a reader of one JSON string after a fixed opening; arguments of any other
// form are looked at when they are complete.
type InputText struct {
	args []byte // all arguments so far
	at   int    // bytes of args that were read
	mode inputMode
	high rune // first half of an escaped surrogate pair, 0 = none
	sent int  // bytes of text that were given out
}

type inputMode uint8

const (
	inputOpening inputMode = iota // before the first byte of the text
	inputInside                   // in the string
	inputWhole                    // given out at the end, or over
)

// Add takes a fragment of the arguments and appends the text that it completes to dst.
func (x *InputText) Add(dst, fragment []byte) []byte {
	x.args = append(x.args, fragment...)
	if x.mode == inputOpening {
		x.open()
	}
	if x.mode != inputInside {
		return dst
	}
	from := len(dst)
	dst = x.read(dst)
	x.sent += len(dst) - from
	return dst
}

// open looks for {"input":" with whitespace between.
func (x *InputText) open() {
	i := 0
	for _, want := range []string{"{", `"` + InputKey + `"`, ":", `"`} {
		for i < len(x.args) && (x.args[i] == ' ' || x.args[i] == '\n' || x.args[i] == '\t' || x.args[i] == '\r') {
			i++
		}
		n := min(len(want), len(x.args)-i)
		if string(x.args[i:i+n]) != want[:n] {
			x.mode = inputWhole
			return
		}
		if n < len(want) {
			return
		}
		i += n
	}
	x.at, x.mode = i, inputInside
}

// read decodes as much of the string as is there.
func (x *InputText) read(dst []byte) []byte {
	for x.at < len(x.args) {
		c := x.args[x.at]
		switch {
		case c == '"':
			x.mode = inputWhole
			return x.flush(dst)
		case c != '\\':
			dst = append(x.flush(dst), c)
			x.at++
			continue
		case x.at+1 == len(x.args):
			return dst
		}
		if e := x.args[x.at+1]; e != 'u' {
			dst = append(x.flush(dst), unescape(e))
			x.at += 2
			continue
		}
		if x.at+6 > len(x.args) {
			return dst
		}
		r := hex4(x.args[x.at+2 : x.at+6])
		x.at += 6
		if x.high != 0 && utf16.IsSurrogate(r) {
			if pair := utf16.DecodeRune(x.high, r); pair != utf8.RuneError {
				dst, x.high = utf8.AppendRune(dst, pair), 0
				continue
			}
		}
		dst = x.flush(dst)
		if r >= 0xd800 && r < 0xdc00 {
			x.high = r
			continue
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst
}

// flush gives out half of a surrogate pair that has no other half.
func (x *InputText) flush(dst []byte) []byte {
	if x.high != 0 {
		dst, x.high = utf8.AppendRune(dst, utf8.RuneError), 0
	}
	return dst
}

// End appends what is left when the arguments are complete or were cut off: of arguments in another form the text under
// the key, else the arguments themselves. The opening alone holds no text.
func (x *InputText) End(dst []byte) []byte {
	dst = x.flush(dst)
	if x.mode == inputOpening || x.sent > 0 || x.mode == inputInside || x.at > 0 {
		return dst
	}
	var args map[string]json.RawMessage
	var text string
	if json.Unmarshal(x.args, &args) == nil && json.Unmarshal(args[InputKey], &text) == nil {
		return append(dst, text...)
	}
	return append(dst, x.args...)
}

func unescape(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 't':
		return '\t'
	case 'r':
		return '\r'
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	}
	return c
}

// hex4 reads four hexadecimal digits; anything else gives U+FFFD.
func hex4(b []byte) (r rune) {
	for _, c := range b {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return utf8.RuneError
		}
	}
	return r
}
