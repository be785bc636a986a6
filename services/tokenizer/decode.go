package tokenizer

import "unicode/utf8"

const replacement = "\uFFFD"

// Decode returns the text of ids. Control tokens are left out unless keepSpecial is set; unused ids give nothing. Bytes
// that are not UTF-8 become U+FFFD, one for each maximal ill-formed part, exactly as a Decoder emits them.
func (t *Tokenizer) Decode(ids []int32, keepSpecial bool) string {
	d := t.NewDecoder(keepSpecial)
	out := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		out = d.Append(out, id)
	}
	return string(d.AppendFlush(out))
}

// Decoder turns a stream of token ids into text. What it emits is always whole characters; an unfinished one is held
// back until its rest arrives. One per sequence; not safe for concurrent use.
type Decoder struct {
	t           *Tokenizer
	keepSpecial bool

	// held holds the first bytes of an unfinished character; need more bytes are missing, the next between lo and hi.
	held   [3]byte
	n      int
	need   int
	lo, hi byte
}

// NewDecoder makes a Decoder. With keepSpecial control tokens appear as their literal text, else not at all.
func (t *Tokenizer) NewDecoder(keepSpecial bool) *Decoder {
	return &Decoder{t: t, keepSpecial: keepSpecial}
}

// Append appends to dst the text that becomes complete with token id.
func (d *Decoder) Append(dst []byte, id int32) []byte {
	switch d.t.TokenKind(id) {
	case KindUnused:
		return dst
	case KindControl:
		if !d.keepSpecial {
			return dst
		}
	}
	return d.AppendBytes(dst, d.t.TokenBytes(id))
}

// Push is Append for a caller that wants a string.
func (d *Decoder) Push(id int32) string { return string(d.Append(nil, id)) }

// AppendBytes appends to dst the text that becomes complete with raw bytes (for output that does not come from tokens).
func (d *Decoder) AppendBytes(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		if d.need == 0 && raw[i] < utf8.RuneSelf {
			// Runs of ASCII, which is most text, in one piece.
			j := i + 1
			for j < len(raw) && raw[j] < utf8.RuneSelf {
				j++
			}
			dst = append(dst, raw[i:j]...)
			i = j
			continue
		}
		dst = d.appendByte(dst, raw[i])
		i++
	}
	return dst
}

// appendByte runs the well-formedness rules of the Unicode standard, table 3-7: the lead byte narrows the range of
// the second.
func (d *Decoder) appendByte(dst []byte, b byte) []byte {
	if d.need > 0 {
		if b >= d.lo && b <= d.hi {
			d.lo, d.hi = 0x80, 0xBF
			d.need--
			if d.need == 0 {
				dst = append(append(dst, d.held[:d.n]...), b)
				d.n = 0
				return dst
			}
			d.held[d.n] = b
			d.n++
			return dst
		}
		dst = append(dst, replacement...)
		d.n, d.need = 0, 0
	}
	d.lo, d.hi = 0x80, 0xBF
	switch {
	case b < utf8.RuneSelf:
		return append(dst, b)
	case b >= 0xC2 && b <= 0xDF:
		d.need = 1
	case b >= 0xE0 && b <= 0xEF:
		d.need = 2
		if b == 0xE0 {
			d.lo = 0xA0
		} else if b == 0xED {
			d.hi = 0x9F
		}
	case b >= 0xF0 && b <= 0xF4:
		d.need = 3
		if b == 0xF0 {
			d.lo = 0x90
		} else if b == 0xF4 {
			d.hi = 0x8F
		}
	default:
		return append(dst, replacement...)
	}
	d.held[0] = b
	d.n = 1
	return dst
}

// Held is the number of bytes that wait for the rest of their character, 0 to 3.
func (d *Decoder) Held() int { return d.n }

// AppendFlush ends the stream: a held unfinished character becomes one U+FFFD. The Decoder is then as new.
func (d *Decoder) AppendFlush(dst []byte) []byte {
	if d.n > 0 {
		dst = append(dst, replacement...)
	}
	d.n, d.need = 0, 0
	return dst
}

// Flush is AppendFlush for a caller that wants a string.
func (d *Decoder) Flush() string { return string(d.AppendFlush(nil)) }
