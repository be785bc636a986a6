package lookup

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// naive searches for the latest earlier occurrence of the longest of the last MaxGram to MinGram tokens.
func naive(text []int32) (source, matched int) {
	for n := MaxGram; n >= MinGram; n-- {
		if n >= len(text) {
			continue
		}
		tail := text[len(text)-n:]
		for end := len(text) - 1; end >= n; end-- {
			if slices.Equal(text[end-n:end], tail) {
				for n < min(MaxMatched, end) && text[end-n-1] == text[len(text)-n-1] {
					n++
				}
				return end, n
			}
		}
	}
	return 0, 0
}

// follow is what a reader of the text expects from source on.
func follow(text []int32, source, n int) []int32 {
	text = slices.Clone(text)
	end := len(text)
	for i := range n {
		text = append(text, text[source+i])
	}
	return text[end:]
}

func check(t rapid.TB, x *Index, text []int32) {
	t.Helper()
	source, matched := naive(text)
	if x.Len() != len(text) || x.Matched() != matched || (matched > 0 && x.source != source) {
		t.Fatalf("%v: %d tokens match those before %d, want %d before %d", text, x.Matched(), x.source, matched, source)
	}
	next, ok := x.Next()
	got := x.Propose([]int32{-1}, 9)
	if matched == 0 {
		if ok || len(got) != 1 {
			t.Fatalf("%v: proposes %v without a match", text, got)
		}
		return
	}
	if want := follow(text, source, 9); !ok || next != want[0] || got[0] != -1 || !slices.Equal(got[1:], want) {
		t.Fatalf("%v: proposes %d, %v, want %v", text, next, got, want)
	}
}

// TestIndexEqualsSearch: after every token of any text, and of the next text in the same index.
func TestIndexEqualsSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x Index
		for range 2 {
			vocab := rapid.SampledFrom([]int32{1, 2, 5, 50}).Draw(t, "vocab")
			text := rapid.SliceOfN(rapid.Int32Range(0, vocab), 0, 120).Draw(t, "text")
			for range rapid.IntRange(0, 3).Draw(t, "copies") { // of a part, longer than MaxGram and MaxMatched
				if n := len(text); n > 0 {
					from := rapid.IntRange(0, n-1).Draw(t, "from")
					text = append(text, text[from:rapid.IntRange(from, n).Draw(t, "to")]...)
				}
			}
			x.Reset(rapid.IntRange(0, 3000).Draw(t, "size"))
			for i, token := range text {
				x.Append(token)
				check(t, &x, text[:i+1])
			}
		}
	})
}

// TestBehindEqualsSearch: the latest occurrence that ends in the text, of the longest of the last MaxGram to MinGram
// tokens of text and path; the index answers as before.
func TestBehindEqualsSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		vocab := rapid.SampledFrom([]int32{1, 2, 5, 50}).Draw(t, "vocab")
		text := rapid.SliceOfN(rapid.Int32Range(0, vocab), 0, 120).Draw(t, "text")
		path := rapid.SliceOfN(rapid.Int32Range(0, vocab), 1, 20).Draw(t, "path")
		if n := len(text); n > 0 && rapid.Bool().Draw(t, "copy") {
			from := rapid.IntRange(0, n-1).Draw(t, "from")
			path = append(slices.Clone(path), text[from:rapid.IntRange(from, n).Draw(t, "to")]...)
		}
		var x Index
		x.Extend(text)
		all := slices.Concat(text, path)
		source, matched := 0, 0
	search:
		for n := MaxGram; n >= MinGram; n-- {
			for end := len(text); end >= n; end-- {
				if n <= len(all) && slices.Equal(all[end-n:end], all[len(all)-n:]) {
					for n < min(MaxMatched, end) && all[end-n-1] == all[len(all)-n-1] {
						n++
					}
					source, matched = end, n
					break search
				}
			}
		}
		got, m := x.Behind(path, []int32{-1}, 30)
		want := []int32{-1}
		if matched > 0 {
			want = append(want, follow(all, source, 30)...)
		}
		if m != matched || !slices.Equal(got, want) {
			t.Fatalf("%v, %v: %v after a match of %d, want %v, %d", text, path, got, m, want, matched)
		}
		check(t, &x, text)
	})
}

// TestGrowth: tables that were made for less hold what they should.
func TestGrowth(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var x Index
	var text []int32
	for len(text) < 20000 {
		if len(text) > 100 && rng.IntN(40) == 0 {
			from := rng.IntN(len(text) - 50)
			text = append(text, text[from:from+rng.IntN(50)]...)
		}
		text = append(text, int32(rng.IntN(300)))
	}
	for i, token := range text {
		x.Append(token)
		if i%97 == 0 {
			check(t, &x, text[:i+1])
		}
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte("func add(a, b int) int { return a + b }\nfunc add(a, b int"))
	f.Add([]byte("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"))
	f.Add([]byte("abcabcabcabcab"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var x Index
		var tokens []int32
		for _, b := range text[:min(len(text), 400)] {
			tokens = append(tokens, int32(b))
			x.Append(int32(b))
			check(t, &x, tokens)
		}
	})
}

// TestNoAllocation: a text that is no longer than was said, in an index that has had one of its size.
func TestNoAllocation(t *testing.T) {
	const n = 5000
	text := sample(n)
	var x Index
	x.Reset(n)
	x.Extend(text)
	out := make([]int32, 0, 64)
	if allocs := testing.AllocsPerRun(5, func() {
		x.Reset(n)
		for _, token := range text {
			x.Append(token)
			out = x.Propose(out[:0], 15)
		}
	}); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// sample is a text like others: words of different frequency, and passages that come again.
func sample(n int) []int32 {
	rng := rand.New(rand.NewPCG(3, 4))
	words := rand.NewZipf(rng, 1.2, 8, 150000)
	text := make([]int32, 0, n)
	for len(text) < n {
		if len(text) > 1000 && rng.IntN(100) == 0 {
			from := rng.IntN(len(text) - 100)
			text = append(text, text[from:from+50]...)
		}
		text = append(text, int32(words.Uint64()))
	}
	return text[:n]
}

// BenchmarkAppend: nanoseconds a token of a text that is taken in from its start, emptying the index included.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{1 << 10, 1 << 13, 1 << 17} {
		for _, sized := range []bool{true, false} {
			name := strconv.Itoa(n)
			if !sized {
				name += "/growing"
			}
			b.Run(name, func(b *testing.B) {
				text := sample(n)
				var x Index
				b.ReportAllocs()
				for b.Loop() {
					if sized {
						x.Reset(n)
					} else {
						x = Index{}
					}
					x.Extend(text)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/token")
				b.ReportMetric(float64(4*(cap(x.tokens)+grams*cap(x.tables[0].slots)))/float64(n), "B/token")
			})
		}
	}
}
