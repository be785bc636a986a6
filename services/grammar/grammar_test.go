package grammar

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-inference/tandem/services/cputime"
)

// testVocabulary has all bytes, then words, then a few tokens without text.
func testVocabulary(words ...string) *Vocabulary {
	list := make([]string, 256, 256+len(words)+4)
	for i := range list {
		list[i] = string([]byte{byte(i)})
	}
	list = append(list, words...)
	special := []string{"<think>", "</think>", "<tool_call>", "</tool_call>"}
	return NewVocabulary(Source{
		Size: len(list) + len(special),
		Bytes: func(id int32) []byte {
			if int(id) < len(list) {
				return []byte(list[id])
			}
			return nil
		},
		Named: func(text string) (int32, bool) {
			for i, s := range special {
				if s == text {
					return int32(len(list) + i), true
				}
			}
			return 0, false
		},
	})
}

func compile(t testing.TB, text string, v *Vocabulary) *Grammar {
	t.Helper()
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	g, err := s.Compile(v)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func matches(g *Grammar, text string) bool { return g.Accepts(g.AdvanceBytes(g.Start(), []byte(text))) }

func TestLanguage(t *testing.T) {
	v := testVocabulary()
	for _, c := range []struct {
		grammar string
		yes, no []string
	}{
		{`root ::= "yes" | "no"`, []string{"yes", "no"}, []string{"", "y", "yesno", "ye", "nope"}},
		{"root ::= a+ # comment\na ::= [a-c]\n", []string{"a", "abc"}, []string{"", "d", "abd"}},
		{`root ::= [^a-z"\n]{2,3}`, []string{"AB", "é1?"}, []string{"A", "ABCD", "aB", "A\n", "\xc3("}},
		{`root ::= "a"{3}`, []string{"aaa"}, []string{"aa", "aaaa"}},
		{`root ::= "ab"{2,}`, []string{"abab", "ababab"}, []string{"ab", "aba"}},
		{`root ::= ("a" | "b" "c"?)* "d"`, []string{"d", "abcd", "bbad"}, []string{"cd", "ac"}},
		{`root ::= "(" root? ")"`, []string{"()", "((()))"}, []string{"(", "(()", "())"}},
		{"root ::= e\ne ::= t (\"+\" t)*\nt ::= [0-9]+ | \"(\" e \")\"", []string{"1", "1+(2+33)"}, []string{"1+", "(1"}},
		{`root ::= "a" root "b" | "a" root "c" | "x"`, []string{"aaxbc", "x", "axc"}, []string{"aaxb", "aax"}},
		{"root ::= s\ns ::= \"a\" s \"b\" | \"a\" t \"c\" | \"x\"\nt ::= \"a\" s \"b\" | \"a\" t \"c\" | \"x\"",
			[]string{strings.Repeat("a", 60) + "x" + strings.Repeat("b", 30) + strings.Repeat("c", 30)}, []string{"aaxb"}},
		{"root ::= n n n \"x\"\nn ::= \"a\"? | \"\" n2\nn2 ::= n3*\nn3 ::= \"b\"?",
			[]string{"x", "aax", "abbax", "abx"}, []string{"aaaax"}},
		{`root ::= .{2}`, []string{"éé", "ab", "\U0001F600x"}, []string{"a", "abc", "\xff\xff", "é"}},
		{`root ::= "\x41\u00e9\U0001F600\n\t\\\""`, []string{"A\u00e9\U0001F600\n\t\\\""}, []string{"A"}},
		{`root ::= [\u0430-\u044f]+ [-a]`, []string{"привет-", "вa"}, []string{"Привет-", "-"}},
		{`root ::= $until("</p>") "!"`, []string{"</p>!", "a<</p></p>!!"[0:6] + "!", "é<p</p>!"},
			[]string{"</p>", "abc", "</p></p>!", "\xff</p>!"}},
		{`root ::= $without("ab", "ba") "."`, []string{".", "a.", "aa.", "acb.", "a..b."}, []string{"ab.", "cba.", "a"}},
		{`root ::= ("<" $until("aab"))*`, []string{"", "<aab", "<aaab<aab"}, []string{"<", "<aa", "<aabx"}},
		{"root ::=\n  \"a\" |\n  (\n \"b\"\n \"c\" )", []string{"a", "bc"}, []string{"b"}},
		{"root ::= \"a\" | \"ab\" | \"abc\" | x\nx ::= \"abd\"", []string{"a", "ab", "abc", "abd"}, []string{"abcd", "abe"}},
		{`root ::= "a"? "b"{0,2} "c"{0}`, []string{"", "a", "abb", "b"}, []string{"c", "abbb"}},
		{`root ::= ("x"?){3,5} "y"`, []string{"y", "xxxxxy"}, []string{"xxxxxxy"}},
	} {
		g := compile(t, c.grammar, v)
		for _, s := range c.yes {
			if !matches(g, s) {
				t.Errorf("%s: %q is refused", c.grammar, s)
			}
		}
		for _, s := range c.no {
			if matches(g, s) {
				t.Errorf("%s: %q is accepted", c.grammar, s)
			}
		}
	}
}

func TestFaultsNameThePlace(t *testing.T) {
	deep := "root ::= " + strings.Repeat("(", 300) + `"a"` + strings.Repeat(")", 300)
	for _, c := range []struct{ grammar, want string }{
		{"", `line 1 column 1: there is no rule "root"`},
		{"root ::= \"a", `line 1 column 10: the literal has no closing`},
		{"root ::= a\n\na ::= [b-a]", `line 3 column 8: the range 'b'-'a' is empty`},
		{"root ::= a b", `line 1 column 10: rule "a" is not defined`},
		{"root ::= \"é\" ) ", `line 1 column 14: unexpected ')'`},
		{"root ::= (\"a\"", `expected ')'`},
		{"root = \"a\"", `expected "::="`},
		{"root ::= \"a\"\nroot ::= \"b\"", `line 2 column 1: rule "root" is defined twice`},
		{"root ::= root \"a\"", `line 1 column 1: left recursion: root -> root`},
		{"root ::= b \"a\"\nb ::= \"\"? c\nc ::= (\"x\"* b)?", `left recursion: b -> c -> b`},
		{`root ::= "\q"`, `unknown escape`},
		{`root ::= "\x4"`, `the escape needs 2`},
		{`root ::= "\ud800"`, `no character`},
		{`root ::= [a`, `the character class has no closing`},
		{`root ::= []`, `the character class is empty`},
		{`root ::= "a"{3,2}`, `ends before it begins`},
		{`root ::= "a"{99999999999}`, `repetitions`},
		{`root ::= ((("a"{1000}){1000}){1000}){1000} ("a"{60000} "b"{60000} "c"{60000} [a-z]{60000} "x"{60000} "y"{60000} "z"{60000} "u"{60000} "w"{60000})`, `states`},
		{`root ::= <[400000]>`, `line 1 column 12: token 400000 is outside`},
		{`root ::= <nothing>`, `line 1 column 10: the vocabulary has no token "<nothing>"`},
		{`root ::= $maybe("a")`, `unknown construct`},
		{`root ::= $until("")`, `must be text and not empty`},
		{deep, "nested deeper"},
		{"root ::= \"a\xff\"", "line 1 column 12: is not UTF-8"},
		{`root ::= !"a"`, "expected a token"},
	} {
		s, err := Parse(c.grammar)
		if err == nil {
			_, err = s.Compile(testVocabulary())
		}
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.80s: %v, want %q", c.grammar, err, c.want)
		}
	}
}

func TestTokenTerminals(t *testing.T) {
	v := testVocabulary("hello", "world")
	named := func(s string) int32 { id, _ := v.named(s); return id }
	g := compile(t, fmt.Sprintf(`root ::= !<[104]>* <tool_call> "{" [a-z]+ "}" <[%d]>`, named("</tool_call>")), v)
	s := g.Start()
	m, err := g.Mask(s)
	if err != nil {
		t.Fatal(err)
	}
	if m.Allows('h') || !m.Allows('w') || !m.Allows(256) || m.Allows(named("<think>")) || !m.Allows(named("<tool_call>")) {
		t.Error("the first mask is wrong")
	}
	if n := 257 + 1; m.Count != n {
		t.Errorf("%d tokens allowed, want %d", m.Count, n)
	}
	if g.Advance(s, 'h') != nil || g.Advance(s, named("<think>")) != nil {
		t.Error("tokens that are not allowed advance")
	}
	for _, id := range []int32{256, 'w', named("<tool_call>"), '{', 257, '}', named("</tool_call>")} {
		if s = g.Advance(s, id); s == nil {
			t.Fatalf("token %d is refused", id)
		}
	}
	if !g.Accepts(s) {
		t.Error("the end is not accepted")
	}
	if m, _ := g.Mask(s); m.Count != 0 || m.Only != -1 {
		t.Error("something may follow the end")
	}
}

func TestForced(t *testing.T) {
	g := compile(t, `root ::= "{\"name\": \"" ("get" | "gift") [a-z]? "\"}"`, testVocabulary())
	for _, c := range []struct{ after, want string }{
		{"", `{"name": "g`}, {`{"name": "ge`, "t"}, {`{"name": "get`, ""}, {`{"name": "getx`, `"}`}, {`{"name": "getx"}`, ""},
	} {
		if got := string(g.Forced(g.AdvanceBytes(g.Start(), []byte(c.after)), 100)); got != c.want {
			t.Errorf("after %q %q is forced, want %q", c.after, got, c.want)
		}
	}
}

// TestDeepTextEnds: nesting has a limit, so that text that only opens cannot grow a state without end.
func TestDeepTextEnds(t *testing.T) {
	g := compile(t, `root ::= "[" root* "]"`, testVocabulary())
	s := g.Start()
	depth := 0
	for ; s != nil && depth < 2*MaxDepth; depth++ {
		if s = g.AdvanceBytes(s, []byte("[")); s == nil {
			break
		}
	}
	if depth >= MaxDepth || depth < MaxDepth-10 {
		t.Errorf("%d brackets were accepted, the limit is %d", depth, MaxDepth)
	}
}

// TestHeavyGrammars: what looks dangerous is refused or handled within a bounded time.
func TestHeavyGrammars(t *testing.T) {
	v := testVocabulary("aa", "aaaa", "ab")
	optional := "root ::= " + strings.Repeat(`"a"? `, 3000)
	choice := "root ::= " + strings.Repeat(`("a" | "b" "a"* | r)? `, 1000) + "\nr ::= " + strings.Repeat(`"a"? `, 500)
	layers := "root ::= r0 r0\n"
	for i := range 200 {
		layers += fmt.Sprintf("r%d ::= \"a\"? (r%d \"x\" | r%d \"y\" | r%d)?\n", i, i+1, i+1, i+1)
	}
	for name, text := range map[string]string{
		"optional": optional, "choice": choice, "layers": layers + `r200 ::= "b"`,
		"nullable rounds": `root ::= ("a"? "b"?){60000} "c"`, "nested rounds": `root ::= ((("a"?){50000}){50000}){50000}`,
		"stars": `root ::= (((("a"*)*)*)* "a"*)*`, "counted": `root ::= ("a" | "aa"){0,60000}`,
		"two stacks": "root ::= \"a\" root \"a\" | \"a\"? \"b\"?",
		"classes":    "root ::= " + strings.Repeat(`[^a-c\u0100-\u0103é-ú] `, 500),
	} {
		start := cputime.Spent(t)
		s, err := Parse(text)
		if err != nil {
			t.Fatal(name, err)
		}
		g, err := s.Compile(v)
		for at := 0; err == nil && at < 300; at++ {
			state := g.AdvanceBytes(g.Start(), []byte(strings.Repeat("a", at)))
			if state == nil {
				break
			}
			_, err = g.Mask(state)
		}
		took := cputime.Spent(t) - start
		t.Logf("%s: %v, %v", name, took, err)
		if took > 20*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
}

// TestMaskWork: a mask that would take many steps, each of them bounded, is refused.
func TestMaskWork(t *testing.T) {
	grammar := "root ::= .* ("
	for i := range 1000 {
		grammar += fmt.Sprintf("r%d \"x%d\" | ", i, i)
	}
	grammar += "r0)\n"
	for i := range 1000 {
		grammar += fmt.Sprintf("r%d ::= [a-z] \"%d\"\n", i, i)
	}
	g := compile(t, grammar, testVocabulary())
	s := g.AdvanceBytes(g.Start(), []byte("aa"))
	if _, err := g.Mask(s); err == nil || g.m.spent > 2*maxMaskWork {
		t.Errorf("%d pairs were looked at, %v", g.m.spent, err)
	}
	if !matches(g, "aa7x7") {
		t.Error("the text is not followed after a mask was refused")
	}
}

// drawRules draws rules, most of which may be empty.
func drawRules(t *rapid.T) *Syntax {
	s := &Syntax{rules: make([]rule, rapid.IntRange(1, 12).Draw(t, "rules"))}
	var draw func(depth int) expr
	draw = func(depth int) expr {
		kind := rapid.IntRange(0, 9).Draw(t, "kind")
		if depth == 0 {
			kind %= 6
		}
		var list []expr
		if kind == 6 || kind == 7 {
			for range rapid.IntRange(0, 4).Draw(t, "parts") {
				list = append(list, draw(depth-1))
			}
		}
		switch kind {
		case 0:
			return literal(rapid.SampledFrom([]string{"", "a"}).Draw(t, "literal"))
		case 1:
			return text{through: rapid.Bool().Draw(t, "through")}
		case 6:
			return seq(list)
		case 7:
			return alt(list)
		case 8, 9:
			return repeat{draw(depth - 1), rapid.IntRange(0, 2).Draw(t, "min"), 2}
		}
		return ref(rapid.IntRange(0, len(s.rules)-1).Draw(t, "rule"))
	}
	for i := range s.rules {
		s.rules[i].body = draw(3)
	}
	return s
}

// TestNullable: the rules that match the empty text are the fewest that agree with each other.
func TestNullable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawRules(t)
		want := make([]bool, len(s.rules))
		for range s.rules {
			for i := range s.rules {
				want[i] = nullableExpr(s.rules[i].body, want)
			}
		}
		if got := s.nullable(); !slices.Equal(got, want) {
			t.Fatalf("%v are said to match the empty text, want %v: %#v", got, want, s.rules)
		}
	})
}

// drawGrammar draws a grammar without left recursion over a small alphabet.
func drawGrammar(t *rapid.T) string {
	rules := rapid.IntRange(1, 4).Draw(t, "rules")
	var b strings.Builder
	var expr func(depth int) string
	expr = func(depth int) string {
		kind := rapid.IntRange(0, 9).Draw(t, "kind")
		if depth <= 0 {
			kind %= 4
		}
		switch kind {
		case 0, 1:
			return `"` + rapid.StringOfN(rapid.RuneFrom([]rune("abcé")), 0, 3, -1).Draw(t, "literal") + `"`
		case 2:
			return rapid.SampledFrom([]string{"[a-c]", "[^a]", "[éa]", "[à-ü]", "[\\u0400-\\u04ff]", "[ab]"}).Draw(t, "class")
		case 3:
			return rapid.SampledFrom([]string{"<[257]>", "<[258,260]>", "!<[97,259]>", "<[98]>"}).Draw(t, "token")
		case 4, 5:
			return expr(depth-1) + " " + expr(depth-1)
		case 6:
			return "(" + expr(depth-1) + " | " + expr(depth-1) + ")"
		case 7:
			return "(" + expr(depth-1) + ")" +
				rapid.SampledFrom([]string{"*", "+", "?", "{2}", "{1,3}", "{0,7}", "{2,}", "{6,9}"}).Draw(t, "repeat")
		default:
			return fmt.Sprintf(`("a" r%d)`, rapid.IntRange(0, rules-1).Draw(t, "rule"))
		}
	}
	fmt.Fprintf(&b, "root ::= %s\n", expr(3))
	for i := range rules {
		fmt.Fprintf(&b, "r%d ::= %s\n", i, expr(2))
	}
	return b.String()
}

// TestMasksAreSimulations: on random grammars the mask is what trying every token by a slow second implementation says.
func TestMasksAreSimulations(t *testing.T) {
	words := []string{"ab", "aa", "abc", "aé", "\xc3", "\xa9", "\xa9a", "é", "éa", "cba", "bb", "\xd0", "Г", "aab", "ccc"}
	v := testVocabulary(words...)
	rapid.Check(t, func(rt *rapid.T) {
		text := drawGrammar(rt)
		s, err := Parse(text)
		if err != nil {
			rt.Skip(err)
		}
		g, err := s.Compile(v)
		if err != nil {
			rt.Fatal(text, err)
		}
		r := reference{s}
		at, slow := g.Start(), r.start()
		for range rapid.IntRange(0, 6).Draw(rt, "steps") {
			if g.Accepts(at) != accepts(slow) {
				rt.Fatalf("%s accepts: %v", text, g.Accepts(at))
			}
			m, err := g.Mask(at)
			if err != nil {
				rt.Fatal(err)
			}
			var allowed []int32
			for id := range int32(v.size) {
				want := len(r.token(slow, id, v.bytes(id))) > 0
				if m.Allows(id) != want {
					rt.Fatalf("%stoken %d %q is allowed: %v, want %v", text, id, v.bytes(id), m.Allows(id), want)
				}
				if (g.Advance(at, id) != nil) != want {
					rt.Fatalf("%stoken %d %q advances: %v", text, id, v.bytes(id), !want)
				}
				if want {
					allowed = append(allowed, id)
				}
			}
			if len(allowed) != m.Count {
				rt.Fatalf("%s%d tokens counted, %d allowed", text, m.Count, len(allowed))
			}
			if len(allowed) == 0 {
				break
			}
			id := rapid.SampledFrom(allowed).Draw(rt, "token")
			slow = r.token(slow, id, v.bytes(id))
			if at = g.Advance(at, id); len(slow) > 2000 {
				break
			}
		}
	})
}

// TestCountedRepetitions: masks far from the limits are shared, and exact near them.
func TestCountedRepetitions(t *testing.T) {
	v := testVocabulary("xx", "xxxx", "xxxxxxxx", "x,", ",x")
	for _, text := range []string{`root ::= ("x" ","?){0,40} "."`, `root ::= ("x" ","?){25,60} "."`,
		`root ::= ("x" ","?){30,} "."`, `root ::= ([a-x] ","?){40} "."`} {
		g := compile(t, text, v)
		s := g.Start()
		distinct := map[*Mask]bool{}
		for n := 0; s != nil; n++ {
			m, err := g.Mask(s)
			if err != nil {
				t.Fatal(err)
			}
			distinct[m] = true
			for id := range int32(v.size) {
				want := v.bytes(id) != nil && g.AdvanceBytes(s, v.bytes(id)) != nil
				if m.Allows(id) != want {
					t.Fatalf("%s after %d: %q allowed: %v", text, n, v.bytes(id), m.Allows(id))
				}
			}
			if n > 100 {
				break
			}
			s = g.AdvanceBytes(s, []byte("x"))
		}
		if len(distinct) > 30 {
			t.Errorf("%s needs %d masks", text, len(distinct))
		}
	}
}

// TestForgetting: states stay usable when the machine forgets what it knew, and equal texts still lead to equal masks.
func TestForgetting(t *testing.T) {
	g := compile(t, `root ::= "[" ([a-z] | root)* "]"`, testVocabulary())
	s := g.AdvanceBytes(g.Start(), []byte("[a["))
	before, err := g.Mask(s)
	if err != nil {
		t.Fatal(err)
	}
	g.m.count = maxStates
	after, err := g.Mask(s)
	if err != nil {
		t.Fatal(err)
	}
	if before == after || before.Count != after.Count {
		t.Errorf("%p %p, %d and %d tokens", before, after, before.Count, after.Count)
	}
	if s = g.AdvanceBytes(s, []byte("b]]")); !g.Accepts(s) {
		t.Error("the text is refused after forgetting")
	}
	if !matches(g, "[x[]]") {
		t.Error("the start is lost")
	}
}
