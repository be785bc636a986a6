package toolcall

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-inference/tandem/services/grammar"
)

// Constraint says what a turn may consist of.
type Constraint struct {
	// Form in which the model is made to write calls: QwenXML, Hermes, Gemma or Laguna, whichever its template shows it.
	Form Format
	// Mark gives the terminal of a mark: a token of its own, or its text.
	Mark func(mark string) string
	// Must asks for a call; Only names the one tool that may be called, empty = any.
	Must bool
	Only string
	// Serial allows one call.
	Serial bool
	// Content is the rule of a turn without calls; empty = free text.
	Content string
}

// StrictError is a strict tool whose arguments cannot be constrained.
type StrictError struct {
	Tool *Tool
	// Keyword is the path of the fault in the schema.
	Keyword string
	Message string
}

// Error implements error.
func (e *StrictError) Error() string {
	return fmt.Sprintf("the schema of the strict tool %s cannot be followed: %s %s", e.Tool.Name, e.Keyword, e.Message)
}

// Strict reports whether any tool asks that its arguments follow the schema.
func (s *Set) Strict() bool {
	for _, t := range s.All() {
		if t.Strict {
			return true
		}
	}
	return false
}

// Constrain adds the rules of a turn to w and gives the body of the root rule. Without Must and Content the turn is
// text mixed with calls, which needs a mark that is a token of its own. The arguments of strict tools follow
// their schemas.
func (s *Set) Constrain(w *grammar.Writer, c Constraint) (root string, err error) {
	g := &callWriter{Writer: w, c: c}
	var calls []string
	for _, t := range s.All() {
		if c.Only != "" && t.Name != c.Only {
			continue
		}
		body, err := g.call(t)
		if err != nil {
			return "", err
		}
		calls = append(calls, g.Rule(body))
	}
	call := g.Rule(strings.Join(calls, " | "))
	turn := `[ \n]{0,2} ` + call
	if !c.Serial {
		turn += ` ("\n" ` + call + ")*"
	}
	switch {
	case c.Must:
		return turn, nil
	case c.Content != "":
		return c.Content + " | " + turn, nil
	}
	opener := c.Mark(Opener(c.Form))
	if !strings.HasPrefix(opener, "<[") {
		return "", errors.New("the vocabulary has no token that opens a call")
	}
	return "(!" + opener + " | " + call + ")*", nil
}

// Opener is the mark that opens a call of a form.
func Opener(f Format) string {
	if f == Gemma {
		return openGemma
	}
	return openToolCall
}

// Closer is the mark that closes a call of a form.
func Closer(f Format) string {
	if f == Gemma {
		return closeGemma
	}
	return closeToolCall
}

// callWriter adds the rules of calls.
type callWriter struct {
	*grammar.Writer
	c Constraint
}

func seq(parts ...string) string { return strings.Join(parts, " ") }

func (g *callWriter) call(t *Tool) (string, error) {
	mark, quote := g.c.Mark, grammar.Quote
	switch g.c.Form {
	case Hermes:
		args, err := g.object(t)
		return seq(mark(openToolCall), quote("\n{\"name\": \""+t.Name+"\", \"arguments\": "), args, quote("}\n"),
			mark(closeToolCall)), err
	case Gemma:
		args, err := g.bare(t)
		return seq(mark(openGemma), quote("call:"+t.Name), args, mark(closeGemma)), err
	case Laguna:
		params, err := g.params(t, "</arg_value>", mark("</arg_value>"), func(key, value string) string {
			return seq(mark("<arg_key>"), key, mark("</arg_key>"), quote("\n"), mark("<arg_value>"), value, quote("\n"))
		})
		return seq(mark(openToolCall), quote(t.Name+"\n"), params, mark(closeToolCall)), err
	}
	params, err := g.params(t, "</parameter>", quote("\n</parameter>"), func(key, value string) string {
		return seq(quote("<parameter="), key, quote(">\n"), value, quote("\n"))
	})
	return seq(mark(openToolCall), quote("\n<function="+t.Name+">\n"), params, quote("</function>\n"),
		mark(closeToolCall)), err
}

// object is the rule of arguments in JSON.
func (g *callWriter) object(t *Tool) (string, error) {
	if !t.Strict || t.Schema == nil {
		return g.JSON("object"), nil
	}
	rule, err := g.Schema(t.Schema)
	return rule, strictError(t, "", err)
}

// strictError says where in a tool's schema a fault lies.
func strictError(t *Tool, under string, err error) error {
	var se *grammar.SchemaError
	if !errors.As(err, &se) {
		return err
	}
	return &StrictError{t, strings.Trim(under+"."+se.Path, "."), se.Message}
}

// bare is the rule of arguments with bare keys and strings between marks.
func (g *callWriter) bare(t *Tool) (string, error) {
	as := grammar.Spelling{Until: quoteGemma, Quote: g.c.Mark(quoteGemma)}
	if !t.Strict || t.params.types(t.params.root(), 0) != kindObject {
		return g.SchemaAs([]byte(`{"type":"object"}`), as)
	}
	rule, err := g.SchemaAs(t.Schema, as)
	return rule, strictError(t, "", err)
}

// params is the rule of arguments with a tag for each: in any order and number, or with strict each as the schema has
// it. until is the tag that ends a value, closer what is written there.
func (g *callWriter) params(t *Tool, until, closer string, tag func(key, value string) string) (string, error) {
	text := g.until(until)
	props := properties(t.Schema)
	if len(props) == 0 {
		if t.Strict {
			return `""`, nil
		}
		return g.Rule(tag("[a-zA-Z0-9_.$-]{1,64}", text)) + "*", nil
	}
	var list []string
	for _, p := range props {
		value := text
		if t.Strict {
			kinds := t.params.of(p.key)
			as := grammar.Spelling{Until: until, Text: kinds == 0 || kinds&kindString != 0,
				Mixed: kinds != 0 && kinds != kindString}
			rule, err := g.SchemaAs(p.schema, as)
			if err != nil {
				return "", strictError(t, "properties."+p.key, err)
			}
			value = seq(rule, closer)
		}
		rule := g.Rule(tag(grammar.Quote(p.key), value))
		if t.Strict && !p.required {
			rule += "?"
		}
		list = append(list, rule)
	}
	if t.Strict {
		return seq(list...), nil
	}
	return "(" + strings.Join(list, " | ") + ")*", nil
}

// until is the rule of any text up to a mark, and the mark. The text does not spell the mark either.
func (g *callWriter) until(mark string) string {
	if t := g.c.Mark(mark); strings.HasPrefix(t, "<[") {
		return g.Rule("$without(" + grammar.Quote(mark) + ") " + t)
	}
	return g.Rule("$until(" + grammar.Quote(mark) + ")")
}
