package tokenizer

import (
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// graphemeJoiner is what package norm inserts into runs of more than 30 combining marks ("stream-safe" text). Tokenizers do not
// do that, so such text takes the long way.
const graphemeJoiner = "\u034f"

// nfc brings s into Unicode normal form C.
func nfc(s string) string {
	ascii := true
	for i := range len(s) {
		if s[i] >= 0x80 {
			ascii = false
			break
		}
	}
	if ascii || norm.NFC.IsNormalString(s) {
		return s
	}
	out := norm.NFC.String(s)
	if strings.Count(out, graphemeJoiner) == strings.Count(s, graphemeJoiner) {
		return out
	}
	return nfcPlain(s)
}

type markedRune struct {
	text string // one character, or one byte that is not UTF-8
	ccc  uint8  // canonical combining class
}

// nfcPlain is the textbook algorithm (decompose, order, compose) without a limit on the length of mark runs. It takes its data
// from package norm and is only used where that package would insert characters.
func nfcPlain(s string) string {
	var rs []markedRune
	for len(s) > 0 {
		p := norm.NFC.PropertiesString(s)
		n := p.Size()
		if n == 0 {
			n = 1 // incomplete character at the end
		}
		if dec := p.Decomposition(); dec != nil {
			for d := string(dec); len(d) > 0; {
				q := norm.NFC.PropertiesString(d)
				rs = append(rs, markedRune{d[:q.Size()], q.CCC()})
				d = d[q.Size():]
			}
		} else if d := norm.NFD.String(s[:n]); d != s[:n] {
			for d := d; len(d) > 0; { // Hangul syllables have an algorithm instead of a table entry
				q := norm.NFC.PropertiesString(d)
				rs = append(rs, markedRune{d[:q.Size()], q.CCC()})
				d = d[q.Size():]
			}
		} else {
			rs = append(rs, markedRune{s[:n], p.CCC()})
		}
		s = s[n:]
	}
	for i := 0; i < len(rs); {
		j := i
		for j < len(rs) && rs[j].ccc != 0 {
			j++
		}
		slices.SortStableFunc(rs[i:j], func(a, b markedRune) int { return int(a.ccc) - int(b.ccc) })
		i = j + 1
	}
	return compose(rs)
}

func compose(rs []markedRune) string {
	starter := -1 // index into out of the last starter
	var out []markedRune
	lastCCC := -1 // class of the last character kept after the starter, -1 directly behind it
	for _, r := range rs {
		if starter >= 0 && lastCCC < int(r.ccc) {
			pair := out[starter].text + r.text
			if c := norm.NFC.String(pair); len(c) > 0 && c != pair && norm.NFC.PropertiesString(c).Size() == len(c) {
				out[starter].text = c
				continue
			}
		}
		out = append(out, r)
		if r.ccc == 0 {
			starter, lastCCC = len(out)-1, -1
		} else {
			lastCCC = int(r.ccc)
		}
	}
	var b strings.Builder
	for _, r := range out {
		b.WriteString(r.text)
	}
	return b.String()
}
