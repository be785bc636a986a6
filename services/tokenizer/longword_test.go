package tokenizer

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// randomTable draws a tokenizer of a few letters with merges in any order of ranks: also such that give a merge a lower
// rank than one that makes its halves, and several that make the same symbol.
func randomTable(t *rapid.T) *Tokenizer {
	letters := rapid.IntRange(1, 6).Draw(t, "letters")
	symbols := int32(letters)
	type merge struct{ left, right, result int32 }
	var list []merge
	for range rapid.IntRange(0, 60).Draw(t, "merges") {
		m := merge{rapid.Int32Range(0, symbols-1).Draw(t, "left"), rapid.Int32Range(0, symbols-1).Draw(t, "right"), symbols}
		if slices.ContainsFunc(list, func(o merge) bool { return o.left == m.left && o.right == m.right }) {
			continue
		}
		if len(list) > 0 && rapid.IntRange(0, 5).Draw(t, "same") == 0 {
			m.result = rapid.Int32Range(int32(letters), symbols-1).Draw(t, "result")
		} else {
			symbols++
		}
		list = append(list, m)
	}
	if rapid.Bool().Draw(t, "any order") {
		list = rapid.Permutation(list).Draw(t, "order")
	}
	tok := &Tokenizer{merges: newMerges(len(list))}
	for _, m := range list {
		if err := tok.merges.add(m.left, m.right, m.result); err != nil {
			t.Fatal(err)
		}
	}
	for b := range tok.byteIDs {
		tok.byteIDs[b] = int32(b % letters)
	}
	return tok
}

// whole merges a word in one run.
func (t *Tokenizer) whole(word string) []int32 {
	sc := new(bpeScratch)
	t.spell(sc, word)
	t.merges.applyHeap(sc)
	return sc.ids
}

// TestLongWords: a word merged in windows of any width has the ids of one run, on random tables.
func TestLongWords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tok := randomTable(t)
		unit := rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "unit")
		word := string(unit)
		if rapid.Bool().Draw(t, "repeat") {
			word = strings.Repeat(word, rapid.IntRange(1, 30).Draw(t, "times"))
		} else {
			word += string(rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "rest"))
		}
		width := rapid.IntRange(1, 100).Draw(t, "window")
		before := []int32{7, 7, 7}
		got := tok.appendLong(slices.Clone(before), word, width, new(bpeScratch))
		if want := append(before, tok.whole(word)...); !slices.Equal(got, want) {
			t.Fatalf("%q in windows of %d: %v, want %v", word, width, got, want)
		}
	})
}

// TestFarDependence: where the first token of a word depends on its last byte, windows grow until they see it, and ids
// stay the same.
func TestFarDependence(t *testing.T) {
	const letters = 200
	tok := &Tokenizer{merges: newMerges(letters)}
	for b := range tok.byteIDs {
		tok.byteIDs[b] = int32(b)
	}
	for i := letters - 2; i >= 0; i-- { // the pair of letters i and i+1 merges before that of i-1 and i
		if err := tok.merges.add(int32(i), int32(i+1), 256+int32(i)); err != nil {
			t.Fatal(err)
		}
	}
	for size := letters - 3; size <= letters; size++ {
		var word []byte
		for i := range size {
			word = append(word, byte(i))
		}
		for _, text := range []string{string(word), strings.Repeat(string(word), 5)} {
			for width := 2; width < 2*letters; width += 3 {
				got := tok.appendLong(nil, text, width, new(bpeScratch))
				if want := tok.whole(text); !slices.Equal(got, want) {
					t.Fatalf("%d letters in windows of %d: %v, want %v", size, width, got, want)
				}
			}
		}
	}
	if a, b := tok.whole("\x00\x01\x02\x03"), tok.whole("\x00\x01\x02\x03\x04"); a[0] == b[0] {
		t.Fatalf("the first tokens of %v and %v do not depend on the last byte", a, b)
	}
}

// TestCrossed: what both sides of a position do while they merge alone says whether the joined word has a token border
// there. Tables whose ranks rise with the length of what is merged are judged exactly, others never as free of a merge
// that there is.
func TestCrossed(t *testing.T) {
	run := func(tok *Tokenizer, word string) *bpeScratch {
		sc := new(bpeScratch)
		tok.spell(sc, word)
		tok.merges.applyHeap(sc)
		return sc
	}
	check := func(t interface{ Fatalf(string, ...any) }, tok *Tokenizer, word string, exact bool) {
		joined := run(tok, word)
		borders := make([]bool, len(word)+1)
		for at := 0; at < len(word); at = int(joined.next[at]) {
			borders[at] = true
		}
		for at := 1; at < len(word); at++ {
			left, right := run(tok, word[:at]), run(tok, word[at:])
			crossed := tok.merges.crossed(left.last, right.first)
			if !crossed && !slices.Equal(joined.ids, append(slices.Clone(left.ids), right.ids...)) ||
				exact && crossed == borders[at] {
				t.Fatalf("%q at %d: crossed %v, alone %v and %v, joined %v", word, at, crossed, left.ids, right.ids, joined.ids)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		tok := randomTable(t)
		check(t, tok, string(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "word")), false)
	})
	// The leftmost of two equal pairs merges first, and what it makes merges with a half of the other one.
	tok := &Tokenizer{merges: newMerges(2)}
	for b := range tok.byteIDs {
		tok.byteIDs[b] = int32(b % 2)
	}
	const a, b, ab, aba = 0, 1, 2, 3
	for _, m := range [][3]int32{{ab, a, aba}, {a, b, ab}} {
		if err := tok.merges.add(m[0], m[1], m[2]); err != nil {
			t.Fatal(err)
		}
	}
	check(t, tok, "\x00\x01\x00\x01", false)
	for _, word := range longWords(tiny(t), 1000) {
		check(t, tiny(t), word[:300], true)
	}
}

// longWords are words without a border for the splitter, by what is hard about them.
func longWords(tok *Tokenizer, size int) map[string]string {
	rng := rand.New(rand.NewPCG(1, 2))
	letters, marks, words := make([]byte, size), make([]byte, size), make([]byte, 0, size+100)
	for i := range size {
		letters[i], marks[i] = 'a'+byte(rng.IntN(26)), "!#$%&*+-./:;<=>?@^_|~"[rng.IntN(21)]
	}
	for len(words) < size { // whole tokens of letters: long chains of merges
		if b := tok.TokenBytes(int32(rng.IntN(tok.VocabSize()))); !slices.ContainsFunc(b,
			func(c byte) bool { return c|0x20 < 'a' || c|0x20 > 'z' }) {
			words = append(words, b...)
		}
	}
	return map[string]string{
		"one letter": strings.Repeat("x", size), "spaces": strings.Repeat(" ", size),
		"letters": string(letters), "marks": string(marks), "tokens": string(words[:size]),
		"a cycle": strings.Repeat("abracadabra", size/11), "no UTF-8": strings.Repeat("\xff\xc3", size/2),
		"no merges": strings.Repeat("\x01", size), "Chinese": strings.Repeat("日本語的中文字", size/21),
		"lines":          strings.Repeat("\n", size),
		"a longer cycle": strings.Repeat(string(letters[:997]), size/997),
	}
}

// TestLongWordsOfVocabularies: the same for words of many windows under vocabularies of models.
func TestLongWordsOfVocabularies(t *testing.T) {
	check := func(t *testing.T, tok *Tokenizer) {
		for name, word := range longWords(tok, 300<<10) {
			if got := tok.Encode(word, Options{}); !slices.Equal(got, tok.whole(word)) {
				t.Errorf("%s: ids differ from those of one run", name)
			}
			sc := new(bpeScratch)
			if got := tok.appendLong(nil, word[:100<<10], 500, sc); !slices.Equal(got, tok.whole(word[:100<<10])) {
				t.Errorf("%s: ids of short windows differ from those of one run", name)
			}
			if cap(sc.next) > 5000 {
				t.Errorf("%s: windows of 500 bytes grew to %d", name, cap(sc.next))
			}
		}
	}
	t.Run("tiny", func(t *testing.T) { check(t, tiny(t)) })
	for file, load := range map[string]func([]byte) (*Tokenizer, error){
		"qwen3.json":       FromJSON,
		"qwen3.5.tiktoken": func(raw []byte) (*Tokenizer, error) { return fromRanks(raw, "qwen35", nil) },
	} {
		t.Run(file, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join("..", "..", "build", "vocabularies", file))
			if os.IsNotExist(err) {
				t.Skip("the vocabulary is not here: make vocabularies fetches it")
			}
			if err != nil {
				t.Fatal(err)
			}
			tok, err := load(raw)
			if err != nil {
				t.Fatal(err)
			}
			check(t, tok)
		})
	}
}

// TestLongWordsAreBounded: besides the ids, encoding one endless word takes memory that does not grow with it.
func TestLongWordsAreBounded(t *testing.T) {
	tok := tiny(t)
	const size = 2 << 20
	for name, word := range longWords(tok, size) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		ids := tok.Encode(word, Options{})
		runtime.ReadMemStats(&after)
		// 4 bytes an id, a quarter of spare room, the first guess of 4/3 bytes a byte, and the windows, which the race
		// detector has made again now and then.
		most := 5*uint64(len(ids)) + size*4/3 + 8<<20
		if got := after.TotalAlloc - before.TotalAlloc; got > most {
			t.Errorf("%s: %.1f bytes a byte were allocated, at most %.1f are expected", name,
				float64(got)/size, float64(most)/size)
		}
	}
}

// BenchmarkLongWords reports time and memory by the length of one endless word: both must stay the same a byte.
func BenchmarkLongWords(b *testing.B) {
	tok := tiny(b)
	for _, mib := range []int{1, 4, 16, 64} {
		for name, word := range longWords(tok, mib<<20) {
			b.Run(fmt.Sprintf("%s/%dMiB", strings.ReplaceAll(name, " ", "_"), mib), func(b *testing.B) {
				b.SetBytes(int64(len(word)))
				b.ReportAllocs()
				for b.Loop() {
					tok.Encode(word, Options{})
				}
			})
		}
	}
}
