package markdown

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func rendered(pieces ...string) string {
	var b bytes.Buffer
	m := New(&b)
	for _, p := range pieces {
		_, _ = m.Write([]byte(p))
	}
	_ = m.Flush()
	return b.String()
}

var renditions = regexp.MustCompile("\x1b\\[[0-9]*m")

// spell writes renditions as tags, which are easier to read.
func spell(s string) string {
	return strings.NewReplacer(bold, "<b>", dim, "<dim>", italic, "<i>", underline, "<u>", cyan, "<c>", plain,
		"</>").Replace(s)
}

func TestMarks(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"plain":      {"Some words.\nAnd more.", "Some words.\nAnd more."},
		"inline":     {"a **b** *c* `d*e` f\n", "a <b>b</> <i>c</> <c>d*e</> f\n"},
		"nested":     {"**a *b* c**", "<b>a <i>b</><b> c</>"},
		"not marks":  {"2 * 3 = 6, snake_case_name, a < b, x[1]!\n", "2 * 3 = 6, snake_case_name, a < b, x[1]!\n"},
		"escaped":    {`\*no\*`, "*no*"},
		"open":       {"a **b", "a **b"},
		"heading":    {"## A `b` c ##d\ntext", "<b><u>A <c>b</><b><u> c ##d</>\ntext"},
		"no heading": {"#hash", "#hash"},
		"list":       {"- a\n  * **b**\n1. c\n", "• a\n  • <b>b</>\n1. c\n"},
		"no list":    {"-a\n**b** c\n10", "-a\n<b>b</> c\n10"},
		"rule": {"---\n* * *\n", "<dim>" + strings.Repeat("─", 20) + "</>\n<dim>" + strings.Repeat("─",
			20) + "</>\n"},
		"quote":          {"> a *b*\n", "<dim>│ </>a <i>b</>\n"},
		"code":           {"```go\nx := *p\n\n  # y\n```\n*z*", "<dim>```go</>\n<c>x := *p</>\n\n<c>  # y</>\n<dim>```</>\n<i>z</>"},
		"longer fence":   {"````\n```\n````\na", "<dim>````</>\n<c>```</>\n<dim>````</>\na"},
		"inline fence":   {"```a``` b", "<c>a</> b"},
		"table":          {"| a*b* | c |\n", "| a*b* | c |\n"},
		"link":           {"see [docs](http://x/y) now", "see <u>docs</><dim> (http://x/y)</> now"},
		"control":        {"a\x1b]0;title\x07b\x1b[2Jc\u009bd", "a]0;titleb[2Jcd"},
		"spaces":         {"  a  b  \n", "  a  b  \n"},
		"other language": {"你好 **世界**。", "你好 <b>世界</>。"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := spell(rendered(c.in)); got != c.want {
				t.Errorf("%q\n gives %q\n  want %q", c.in, got, c.want)
			}
		})
	}
}

// TestAllCutsAgree: what is shown does not depend on the pieces in which the text comes.
func TestAllCutsAgree(t *testing.T) {
	parts := []string{"a", "bc", " ", "  ", "\n", "*", "**", "_", "`", "```", "~~~", "#", "##", "-", "- ", "1", ".", "1. ",
		">", "> ", "|", "[", "](u)", "]", "!", "<b>", "<", "\\", "é", "世", "\t", "\x1b"}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(parts), 0, 30).Draw(t, "parts"), "")
		whole := rendered(text)
		var pieces []string
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		if got := rendered(pieces...); got != whole {
			t.Fatalf("%q in pieces %q\n shows %q\n whole %q", text, pieces, got, whole)
		}
	})
}

// TestWordsAreShownAtOnce: a word is shown when it is complete, unless a mark is open.
func TestWordsAreShownAtOnce(t *testing.T) {
	var b bytes.Buffer
	m := New(&b)
	for _, c := range []struct{ write, shown string }{
		{"One tw", "One "}, {"o ", "One two "}, {"is **bo", "One two is "}, {"ld te", "One two is "},
		{"xt** and ", "One two is bold text and "}, {"so", "One two is bold text and "}, {"\n",
			"One two is bold text and so\n"},
	} {
		_, _ = m.Write([]byte(c.write))
		if got := renditions.ReplaceAllString(b.String(), ""); got != c.shown {
			t.Errorf("after %q: %q, want %q", c.write, got, c.shown)
		}
	}
}

// TestNothingIsLost: letters of the text are all shown, in their order.
func TestNothingIsLost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching("([a-z]{1,3}|[*_`#>. -]{1,3}|\n){0,30}").Draw(t, "text")
		letters := func(s string) string {
			return strings.Map(func(r rune) rune {
				if r >= 'a' && r <= 'z' {
					return r
				}
				return -1
			}, s)
		}
		if got := letters(renditions.ReplaceAllString(rendered(text), "")); got != letters(text) {
			t.Fatalf("%q shows %q", text, got)
		}
	})
}
