package tokenizer

import (
	"slices"
	"testing"
)

// FuzzRoundTrip checks that the ids of any text stand for exactly its bytes (in normal form C), whether or not special
// tokens are parsed, and that segments of one text encode like the text.
func FuzzRoundTrip(f *testing.F) {
	for _, s := range []string{"", "Hello, world!", "<|im_start|>user\n<|im_end|>", "e\u0301\u0316", "\xff\xc3(",
		"  \n\t'S <think>", "日本語👩‍💻"} {
		f.Add(s, uint8(3))
	}
	f.Fuzz(func(t *testing.T, text string, cut uint8) {
		tok := tiny(t)
		for _, special := range []bool{false, true} {
			ids := tok.Encode(text, Options{ParseSpecial: special})
			var raw []byte
			for _, id := range ids {
				raw = append(raw, tok.TokenBytes(id)...)
			}
			// Added tokens are cut out before normalisation, so normal forms are compared.
			if nfc(string(raw)) != nfc(text) {
				t.Fatalf("special %v: %q became %q", special, text, raw)
			}
			at := int(cut) % (len(text) + 1)
			segs := tok.EncodeSegments([]Segment{{text[:at], special}, {text[at:], special}})
			if !slices.Equal(ids, segs) {
				t.Fatalf("special %v cut %d: segments give %v, text %v", special, at, segs, ids)
			}
		}
	})
}
