package piece

import (
	"slices"
	"testing"

	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"pgregory.net/rapid"
)

const (
	end    = 1
	header = 2
)

var markers = Markers{Ends: []int32{end}, Headers: []int32{header}}

// text is n tokens of no meaning.
func text(n int) []int32 { return slices.Repeat([]int32{9}, n) }

// message is one of n tokens, header and end included.
func message(n int) []int32 { return slices.Concat([]int32{header}, text(n-2), []int32{end}) }

func TestCut(t *testing.T) {
	type c struct {
		tokens            []int32
		borders, messages []int
	}
	for name, c := range map[string]c{
		"nothing to cut": {tokens: text(512)},
		"grid":           {tokens: text(1025), borders: []int{512, 1024}},
		"message":        {slices.Concat(message(100), []int32{9}, message(50)), []int{100}, []int{100}},
		"short messages join": {slices.Concat(message(40), message(23), message(3), message(80)), []int{66},
			[]int{40, 63, 66}},
		"64 tokens are enough": {slices.Concat(message(64), message(2)), []int{64}, []int{64}},
		"63 are not":           {tokens: slices.Concat(message(63), message(2)), messages: []int{63}},
		"grid from the last":   {slices.Concat(message(100), message(600), message(20)), []int{100, 612, 700}, []int{100, 700}},
		"header within 5":      {slices.Concat(message(70), text(4), message(9)), []int{70}, []int{70}},
		"header too far":       {tokens: slices.Concat(message(70), text(5), message(9))},
		"no header":            {tokens: slices.Concat(message(70), text(200))},
		"end of the prompt":    {tokens: message(70)},
	} {
		t.Run(name, func(t *testing.T) {
			got := markers.Cut(c.tokens, Cuts{Borders: []int{7}, Messages: []int{7}})
			if !slices.Equal(got.Borders, c.borders) || !slices.Equal(got.Messages, c.messages) {
				t.Errorf("cut at %v, want %v; messages end at %v, want %v", got.Borders, c.borders, got.Messages, c.messages)
			}
		})
	}
	if got := (Markers{}).Cut(slices.Concat(message(100), message(600)), Cuts{}); !slices.Equal(got.Borders, []int{512}) {
		t.Errorf("a vocabulary without markers is cut at %v", got.Borders)
	}
}

// TestCutIsStable: a prefix has the borders of the whole but for its last tokens, where the next header may be missing;
// and a border of both has the same borders before it in both.
func TestCutIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		whole := slices.Concat(rapid.SliceOfN(rapid.Custom(func(t *rapid.T) []int32 {
			return slices.Concat(message(rapid.IntRange(2, 700).Draw(t, "message")), text(rapid.IntRange(0, 6).Draw(t, "gap")))
		}), 1, 8).Draw(t, "messages")...)
		prefix := whole[:rapid.IntRange(1, len(whole)).Draw(t, "prefix")]
		of, in := markers.Cut(prefix, Cuts{}).Borders, markers.Cut(whole, Cuts{}).Borders
		settled := func(list []int) []int {
			n, _ := slices.BinarySearch(list, len(prefix)-ahead+1)
			return list[:n]
		}
		if !slices.Equal(settled(in), settled(of)) {
			t.Errorf("a prefix of %d has the borders %v, the whole %v", len(prefix), of, in)
		}
		for i, b := range of {
			if j := slices.Index(in, b); j >= 0 && !slices.Equal(of[:i], in[:j]) {
				t.Errorf("border %d follows %v and %v", b, of[:i], in[:j])
			}
		}
		for i, b := range in {
			last := 0
			if i > 0 {
				last = in[i-1]
			}
			if b-last > Grid || b-last < Least {
				t.Errorf("the piece %d..%d has %d tokens", last, b, b-last)
			}
		}
	})
}

func TestNextAndBelow(t *testing.T) {
	c := Cuts{Borders: []int{100, 612}}
	for _, v := range []struct{ from, first, end, below int }{
		{0, 0, 100, 0}, {99, 0, 100, 0}, {100, 100, 612, 100}, {101, 100, 612, 100}, {611, 100, 612, 100},
		{612, 612, 700, 612}, {699, 612, 700, 612},
	} {
		if first, end := c.Next(v.from, 700); first != v.first || end != v.end {
			t.Errorf("position %d is in the piece %d..%d, want %d..%d", v.from, first, end, v.first, v.end)
		}
		if got := c.Below(v.from); got != v.below {
			t.Errorf("the border at or below %d is %d, want %d", v.from, got, v.below)
		}
	}
	if first, end := (Cuts{}).Next(3, 70); first != 0 || end != 70 {
		t.Errorf("an uncut prompt is the piece %d..%d", first, end)
	}
}

func TestStep(t *testing.T) {
	for _, v := range []struct{ widest, chunk, want int }{
		{512, 0, 512}, {512, 1024, 512}, {512, 256, 256}, {512, 300, 256}, {512, 64, 64}, {512, 1, 64},
		{100, 0, 64}, {36, 0, 36}, {36, 64, 36},
	} {
		if got := Step(v.widest, v.chunk); got != v.want {
			t.Errorf("steps of %d rows for an engine of %d and a chunk of %d, want %d", got, v.widest, v.chunk, v.want)
		}
	}
}

// TestMarkersOf reads the vocabulary of the demonstration target.
func TestMarkersOf(t *testing.T) {
	file, err := gguf.Open("../../../models/tandem-tiny-target-q4_k_m.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	words, err := tokenizer.FromGGUF(file)
	if err != nil {
		t.Fatal(err)
	}
	chat := words.Encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", tokenizer.Options{ParseSpecial: true})
	m := MarkersOf(words)
	if got := m.Cut(chat, Cuts{}); len(got.Messages) != 1 || chat[got.Messages[0]+1] != m.Headers[0] {
		t.Errorf("messages of %v end at %v by %+v", chat, got.Messages, m)
	}
}
