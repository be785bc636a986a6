package tokenizer

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// pieces runs the matcher over s.
func pieces(p *splitter, s string) []string {
	var out []string
	for i := 0; i < len(s); {
		end := p.next(s, i)
		out = append(out, s[i:end])
		i = end
	}
	return out
}

// oracle does the same with a regular-expression engine.
func oracle(t testing.TB, re *regexp2.Regexp, s string) []string {
	var out []string
	m, err := re.FindStringMatch(s)
	for ; m != nil && err == nil; m, err = re.FindNextMatch(m) {
		out = append(out, m.String())
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// alphabet holds characters at which the alternatives meet.
var alphabet = []rune("  \t\n\r\n'''sStTrReEvVmMlLdDaZé日ñ09½Ⅷ٣.,!?-_<|>/\u0301\u0308\u093f\u20e3\u00a0\u0085\u1680\u2003\u2028\u3000\u200b\u200d\ufeff😀👩\U00010330\U0001D7D8\U000E0100\x00\x1f\x7f")

func TestSplitAgainstRegexp(t *testing.T) {
	n := 200_000
	if testing.Short() {
		n = 5_000
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for pre, pattern := range map[string]string{"qwen35": patternQwen35, "qwen2": patternQwen2} {
		p, _ := newSplitter(pre)
		re := regexp2.MustCompile(pattern, regexp2.None)
		for range n {
			rs := make([]rune, 1+rng.IntN(12))
			for i := range rs {
				rs[i] = alphabet[rng.IntN(len(alphabet))]
			}
			s := string(rs)
			if d := cmp.Diff(oracle(t, re, s), pieces(p, s)); d != "" {
				t.Fatalf("%s %q: %s", pre, s, d)
			}
		}
		rapid.Check(t, func(rt *rapid.T) {
			s := rapid.String().Draw(rt, "s")
			if strings.ContainsRune(s, 'ſ') {
				return // the engine folds it to s; tokenizers' engines do not agree on it
			}
			if d := cmp.Diff(oracle(t, re, s), pieces(p, s)); d != "" {
				rt.Fatalf("%s %q: %s", pre, s, d)
			}
		})
	}
}

func TestSplitCases(t *testing.T) {
	cases := []struct {
		in, qwen35, qwen2 string // pieces joined with ¦; empty qwen2 means the same
	}{
		{"'sam I'M", "'s¦am¦ I¦'M", ""},
		{"Hello, world!", "Hello¦,¦ world¦!", ""},
		{"I'm 1234, we're coding.", "I¦'m¦ ¦1¦2¦3¦4¦,¦ we¦'re¦ coding¦.", ""},
		{"  one\t two\n\nthree  \n", " ¦ one¦\t¦ two¦\n\n¦three¦  \n", ""},
		{"ied 4 ½ months", "ied¦ ¦4¦ ¦½¦ months", ""},
		{"\u0301!I", "\u0301¦!I", "\u0301!¦I"},
		{"e\u0301a", "e\u0301a", "e¦\u0301a"},
		{"' era", "'¦ era", ""},
		{"Hello, y'all! How are you 😁 ?", "Hello¦,¦ y¦'all¦!¦ How¦ are¦ you¦ 😁¦ ?", ""},
		{"\n =", "\n¦ =", ""},
		{"    Hello\n    Hello", "   ¦ Hello¦\n¦   ¦ Hello", ""},
		{"w048 7tuijk", "w¦0¦4¦8¦ ¦7¦tuijk", ""},
		{"a \n \n  b", "a¦ \n \n¦ ¦ b", ""},
		{"x=}\"\n", "x¦=}\"\n", ""},
		{"สวัสดี ครับ", "สวัสดี¦ ครับ", "สว¦ัสด¦ี¦ คร¦ับ"},
		{"tail   ", "tail¦   ", ""},
		{"\t\tif", "\t¦\tif", ""},
	}
	p35, _ := newSplitter("qwen35")
	p2, _ := newSplitter("qwen2")
	for _, c := range cases {
		if got := strings.Join(pieces(p35, c.in), "¦"); got != c.qwen35 {
			t.Errorf("qwen35 %q: %q, want %q", c.in, got, c.qwen35)
		}
		want := c.qwen2
		if want == "" {
			want = c.qwen35
		}
		if got := strings.Join(pieces(p2, c.in), "¦"); got != want {
			t.Errorf("qwen2 %q: %q, want %q", c.in, got, want)
		}
	}
	if _, ok := newSplitter("llama3"); ok {
		t.Error("unknown pattern accepted")
	}
}

func TestNFC(t *testing.T) {
	long := strings.Repeat("\u0301", 40)
	mixed := strings.Repeat("\u0316\u0301", 20) // class 220 before 230 once ordered
	for in, want := range map[string]string{
		"plain": "plain", "e\u0301": "é", "a\u0316\u0301": "á\u0316", "\u1112\u1161\u11ab": "한", "\u212b": "Å", "é": "é",
		"e" + long:                        "é" + long[2:],
		"e" + mixed:                       "é" + strings.Repeat("\u0316", 20) + strings.Repeat("\u0301", 19),
		"한\u0301" + long + "\u1112\u1161": "한\u0301" + long + "하",
		"\u034fe\u0301" + long:            "\u034fé" + long,
		"a\xff\u0301" + long + "b":        "a\xff\u0301" + long + "b",
	} {
		if got := nfc(in); got != want {
			t.Errorf("%+q: %+q, want %+q", in, got, want)
		}
	}
	// Where package norm inserts nothing, the long way must give what it gives.
	rapid.Check(t, func(t *rapid.T) {
		rs := rapid.SliceOfN(rapid.SampledFrom([]rune("aeéoAÅ\u0301\u0308\u0316\u0323\u0344\u1112\u1161\u11ab한하\u09c7\u09be\u2126日")), 0, 25).Draw(t, "runes")
		s := string(rs)
		if got, want := nfcPlain(s), nfc(s); got != want {
			t.Fatalf("%+q: %+q, want %+q", s, got, want)
		}
	})
}

// TestEndlessMarksAreBounded: a character with endless marks is brought into normal form in a small multiple of
// its memory.
func TestEndlessMarksAreBounded(t *testing.T) {
	text := "a" + strings.Repeat("\u0301\u0316", 256<<10)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := nfc(text)
	runtime.ReadMemStats(&after)
	if want := "\u00e1" + strings.Repeat("\u0316", 256<<10) + strings.Repeat("\u0301", 256<<10-1); got != want {
		t.Errorf("%d bytes that begin with %+q", len(got), got[:min(len(got), 100)])
	}
	if n := float64(after.TotalAlloc-before.TotalAlloc) / float64(len(text)); n > 40 {
		t.Errorf("%.0f bytes a byte were allocated", n)
	}
}

func TestDecoderEveryCut(t *testing.T) {
	tok := tiny(t)
	texts := []string{"né 日本語 👩‍💻 ok", "\xff\xfe", "a\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xe0\x80\x80", "\xed\xa0\x80",
		"\xf4\x90\x80\x80", "\xc3\xc3\xa9", "x\xf0\x9f\x98y", "\xc0\xaf"}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		b := make([]byte, rng.IntN(10))
		for i := range b {
			b[i] = []byte{0x41, 0x80, 0xbf, 0xc2, 0xe0, 0xa0, 0xed, 0x9f, 0xf0, 0x90, 0xf4, 0x8f, 0xff}[rng.IntN(13)]
		}
		texts = append(texts, string(b))
	}
	for _, s := range texts {
		want := strings.ToValidUTF8(s, "") // only a lower bound; the exact answer is the whole-string one below
		d := tok.NewDecoder(true)
		whole := string(d.AppendFlush(d.AppendBytes(nil, []byte(s))))
		if !utf8.ValidString(whole) ||
			strings.ReplaceAll(whole, replacement, "") != strings.ReplaceAll(want, replacement, "") {
			t.Fatalf("%q: %q", s, whole)
		}
		for cut := range len(s) + 1 {
			var out []byte
			for _, part := range []string{s[:cut], s[cut:]} {
				out = d.AppendBytes(out, []byte(part))
				if !utf8.Valid(out) || d.Held() > 3 {
					t.Fatalf("%q cut at %d: emitted %q, %d held", s, cut, out, d.Held())
				}
			}
			if got := string(d.AppendFlush(out)); got != whole {
				t.Fatalf("%q cut at %d: %q, want %q", s, cut, got, whole)
			}
		}
	}
	for in, want := range map[string]string{
		"\xff\xfe": "\uFFFD\uFFFD", "a\xc3": "a\uFFFD", "\xe2\x82": "\uFFFD", "\xf0\x9f\x98": "\uFFFD",
		"\xe0\x80\x80": "\uFFFD\uFFFD\uFFFD", "\xed\xa0\x80": "\uFFFD\uFFFD\uFFFD",
		"\xf4\x90\x80\x80": "\uFFFD\uFFFD\uFFFD\uFFFD", "x\xf0\x9f\x98y": "x\uFFFDy", "\xe2\x82\xe2\x82\xac": "\uFFFD€",
	} {
		d := tok.NewDecoder(true)
		if got := string(d.AppendFlush(d.AppendBytes(nil, []byte(in)))); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
