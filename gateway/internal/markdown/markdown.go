// Package markdown shows Markdown on a terminal while it is being written. Text goes on word by word; a word waits
// for the rest of its line only where a mark in it is still open. Inline marks are read by goldmark, so that
// snake_case or 2 * 3 stay what they are.
package markdown

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// Sequences that select graphic renditions.
const (
	bold, dim, italic, underline, cyan, plain = "\x1b[1m", "\x1b[2m", "\x1b[3m", "\x1b[4m", "\x1b[36m", "\x1b[0m"
)

// specials may be inline marks, or parts of them.
const specials = "*_`[]!<\\"

// Writer renders what is written to it. Its output does not depend on how the text is cut into calls.
type Writer struct {
	w      io.Writer
	inline parser.Parser

	line  []byte // of the current line, what is not shown yet
	kind  kind
	fence string // that opened the current block of code, empty outside
	lit   bool   // a line of code has begun in its colour
	cut   []byte // the start of a character
	err   error
}

// kind is what the current line is.
type kind int

const (
	undecided kind = iota
	whole          // a heading, a rule, a fence: shown when its end has come
	flowing        // text with inline marks
	verbatim       // code, a row of a table
)

// New returns a renderer to w.
func New(w io.Writer) *Writer {
	return &Writer{w: w, inline: parser.NewParser(
		parser.WithBlockParsers(util.Prioritized(parser.NewParagraphParser(), 100)),
		parser.WithInlineParsers(parser.DefaultInlineParsers()...))}
}

// Write implements io.Writer.
func (m *Writer) Write(p []byte) (int, error) {
	b := append(m.cut, p...)
	m.cut = nil
	// A character may be cut at the end of p.
	for i := len(b) - 1; i >= max(0, len(b)-utf8.UTFMax); i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				m.cut = bytes.Clone(b[i:])
				b = b[:i]
			}
			break
		}
	}
	b = Printable(b)
	for len(b) > 0 {
		before, after, ended := bytes.Cut(b, []byte("\n"))
		m.line = append(m.line, before...)
		m.advance(ended)
		if ended {
			m.show("\n")
			m.kind = undecided
		}
		b = after
	}
	return len(p), m.err
}

// Flush shows what is left of the last line, and ends a block of code.
func (m *Writer) Flush() error {
	if len(m.cut) > 0 {
		m.line, m.cut = append(m.line, "\uFFFD"...), nil
	}
	m.advance(true)
	m.kind, m.fence = undecided, ""
	return m.err
}

// Printable leaves control characters out, with which a model could do other things to a terminal than write on it.
func Printable(b []byte) []byte {
	return bytes.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' && c != '\t' {
			return -1
		}
		return c
	}, b)
}

func (m *Writer) show(s string) {
	if s != "" && m.err == nil {
		_, m.err = io.WriteString(m.w, s)
	}
}

// advance shows what can be shown of the line; ended says that all of it is there.
func (m *Writer) advance(ended bool) {
	if m.kind == undecided {
		m.decide(ended)
	}
	switch {
	case m.kind == flowing:
		m.flow(ended)
	case m.kind == verbatim:
		if m.fence != "" && len(m.line) > 0 && !m.lit {
			m.show(cyan)
			m.lit = true
		}
		m.show(string(m.line))
		m.line = nil
		if ended && m.lit {
			m.show(plain)
			m.lit = false
		}
	case ended:
		m.showWhole()
	}
}

var (
	listItem = regexp.MustCompile(`^([-*+]|[0-9]{1,9}[.)])[ \t]`)
	// listStart is what may become a list item.
	listStart = regexp.MustCompile(`^([-*+]|[0-9]{1,9}[.)]?)$`)
	heading   = regexp.MustCompile(`^#{1,6}([ \t]|$)`)
	rule      = regexp.MustCompile(`^(([-][ \t]*){3,}|([*][ \t]*){3,}|([_][ \t]*){3,})$`)
	ruleStart = regexp.MustCompile(`^([- \t]+|[* \t]+|[_ \t]+)$`)
	fenceMark = regexp.MustCompile("^(`{3,}[^`]*|~{3,}.*)$")
)

// decide finds out what the line is, or leaves it undecided.
func (m *Writer) decide(ended bool) {
	indent := string(m.line[:len(m.line)-len(bytes.TrimLeft(m.line, " \t"))])
	rest := string(m.line[len(indent):])
	switch {
	case m.fence != "":
		mark := strings.Trim(rest, " \t")
		switch {
		case strings.Trim(mark, m.fence[:1]) != "" || len(indent) > 3:
			m.kind = verbatim
		case !ended:
		case len(mark) >= len(m.fence):
			m.kind = whole
		default:
			m.kind = verbatim
		}
	case rest == "":
		if ended {
			m.kind = flowing
		}
	case !ended && (strings.Trim(rest, "#") == "" || strings.Trim(rest, "`") == "" || strings.Trim(rest, "~") == ""):
		// A heading or a fence may begin.
	case heading.MatchString(rest), fenceMark.MatchString(rest):
		m.kind = whole
		if !ended && strings.HasPrefix(rest, "```") {
			m.kind = undecided // a further ` makes it text
		}
	case rule.MatchString(rest) && ended:
		m.kind = whole
	case !ended && (ruleStart.MatchString(rest) || listStart.MatchString(rest)):
	case listItem.MatchString(rest):
		mark := listItem.FindStringSubmatch(rest)[1]
		shown := mark
		if len(mark) == 1 {
			shown = "•"
		}
		m.show(indent + shown + " ")
		m.line, m.kind = []byte(rest[len(mark)+1:]), flowing
	case rest[0] == '>':
		if len(rest) < 2 && !ended {
			return
		}
		m.show(indent + dim + "│ " + plain)
		m.line, m.kind = []byte(strings.TrimPrefix(rest[1:], " ")), flowing
	case rest[0] == '|':
		m.kind = verbatim
	default:
		m.show(indent)
		m.line, m.kind = []byte(rest), flowing
	}
}

// showWhole shows a line of kind whole.
func (m *Writer) showWhole() {
	rest := strings.TrimSpace(string(m.line))
	switch {
	case m.fence != "":
		m.fence = ""
		m.show(dim + rest + plain)
	case fenceMark.MatchString(rest):
		m.fence = rest[:len(rest)-len(strings.TrimLeft(rest, rest[:1]))]
		m.show(dim + rest + plain)
	case rule.MatchString(rest):
		m.show(dim + strings.Repeat("─", 20) + plain)
	default:
		rendered, _ := m.render(strings.TrimSpace(strings.TrimLeft(rest, "#")), bold+underline)
		m.show(bold + underline + rendered + plain)
	}
	m.line = nil
}

// flow shows the words of the line whose marks are all closed.
func (m *Writer) flow(ended bool) {
	if ended {
		rendered, _ := m.render(string(m.line), "")
		m.show(rendered)
		m.line = nil
		return
	}
	end := bytes.LastIndexByte(m.line, ' ') + 1
	if end == 0 {
		return
	}
	words := string(m.line[:end])
	if i := strings.IndexAny(words, specials); i >= 0 {
		rendered, closed := m.render(words, "")
		if !closed {
			// Words before the first mark need not wait.
			end = strings.LastIndexByte(words[:i], ' ') + 1
			rendered = words[:end]
		}
		m.show(rendered)
	} else {
		m.show(words)
	}
	m.line = append([]byte(nil), m.line[end:]...)
}

// render writes inline marks as sequences of a terminal; base is the rendition around. closed says that no character
// is left that might become a mark by what follows.
func (m *Writer) render(line, base string) (rendered string, closed bool) {
	closed = true
	body := strings.Trim(line, " \t")
	if body == "" {
		return line, true
	}
	source, start := []byte(body), strings.Index(line, body)
	document := m.inline.Parse(text.NewReader(source))
	var b strings.Builder
	renditions := []string{base}
	push := func(sequence string) {
		renditions = append(renditions, sequence)
		b.WriteString(sequence)
	}
	pop := func() {
		renditions = renditions[:len(renditions)-1]
		b.WriteString(plain + strings.Join(renditions, ""))
	}
	segment := func(raw []byte) {
		if bytes.ContainsAny(raw, specials) {
			closed = false
		}
		b.Write(util.UnescapePunctuations(raw))
	}
	// Walk returns what its function returns, which is never an error.
	_ = ast.Walk(document, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		switch n := node.(type) {
		case *ast.Emphasis:
			if !entering {
				pop()
			} else if n.Level == 1 {
				push(italic)
			} else {
				push(bold)
			}
		case *ast.CodeSpan:
			if !entering {
				break
			}
			push(cyan)
			for c := n.FirstChild(); c != nil; c = c.NextSibling() {
				if t, ok := c.(*ast.Text); ok {
					b.Write(t.Segment.Value(source))
				}
			}
			pop()
			return ast.WalkSkipChildren, nil
		case *ast.Link:
			if entering {
				push(underline)
				break
			}
			pop()
			b.WriteString(dim + " (" + string(n.Destination) + ")" + plain + strings.Join(renditions, ""))
		case *ast.Image:
			if !entering {
				b.WriteString(dim + " (" + string(n.Destination) + ")" + plain + strings.Join(renditions, ""))
			}
		case *ast.AutoLink:
			if entering {
				b.Write(n.URL(source))
			}
		case *ast.RawHTML:
			if entering {
				for i := range n.Segments.Len() {
					at := n.Segments.At(i)
					b.Write(at.Value(source))
				}
			}
			return ast.WalkSkipChildren, nil
		case *ast.Text:
			if entering {
				segment(n.Segment.Value(source))
			}
		case *ast.String:
			if entering {
				segment(n.Value)
			}
		}
		return ast.WalkContinue, nil
	})
	return line[:start] + b.String() + line[start+len(body):], closed
}
