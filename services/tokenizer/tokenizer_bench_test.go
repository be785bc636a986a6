package tokenizer

import (
	"os"
	"strings"
	"testing"
)

func benchText(b *testing.B) string {
	b.Helper()
	var s strings.Builder
	for _, name := range []string{"tokenizer.go", "split.go", "bpe.go", "decode.go"} {
		raw, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		s.Write(raw)
	}
	return s.String()
}

func BenchmarkEncode(b *testing.B) {
	tok, text := tiny(b), benchText(b)
	dst := tok.Encode(text, Options{ParseSpecial: true})
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		dst = tok.appendText(dst[:0], text, Options{ParseSpecial: true})
	}
	b.ReportMetric(float64(len(dst))*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkEncodeCold merges without the help of the piece cache.
func BenchmarkEncodeCold(b *testing.B) {
	tok, text := tiny(b), benchText(b)
	sc := new(bpeScratch)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		for i := 0; i < len(text); {
			end := tok.split.next(text, i)
			sc.ids = sc.ids[:0]
			for ; i < end; i++ {
				sc.ids = append(sc.ids, tok.byteIDs[text[i]])
			}
			tok.merges.apply(sc)
		}
	}
}

func BenchmarkSplit(b *testing.B) {
	tok, text := tiny(b), benchText(b)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		for i := 0; i < len(text); {
			i = tok.split.next(text, i)
		}
	}
}

func BenchmarkEncodeOneHugeWord(b *testing.B) {
	tok := tiny(b)
	text := strings.Repeat("abracadabra", 1<<14)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Encode(text, Options{})
	}
}

func BenchmarkDecode(b *testing.B) {
	tok, text := tiny(b), benchText(b)
	ids := tok.Encode(text, Options{})
	d := tok.NewDecoder(false)
	buf := make([]byte, 0, 64)
	b.ReportAllocs()
	for b.Loop() {
		for _, id := range ids {
			buf = d.Append(buf[:0], id)
		}
	}
	b.ReportMetric(float64(len(ids))*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
}
