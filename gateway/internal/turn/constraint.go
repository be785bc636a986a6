package turn

import (
	"cmp"
	"errors"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/grammar"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// contentGap is the whitespace that a model may write between its reasoning and its content. The emitter removes it
// there, so it is only for turns that begin in reasoning: content without a close marker before it begins with its
// first character.
const contentGap = `[ \n]{0,2} `

// Constraint limits what may be chosen by tool choice, format and strict tools (docs/spec/http-api.md §10.2, §10.8).
// Prepare does so by itself; it is for runs that Raw made.
func (s *Service) Constraint(m *model.Model, req *Request, p *Prepared) error {
	calls := req.Tools.Len() > 0 && req.Choice.Mode != ToolNone
	if req.Format.Kind == FormatGrammar {
		if calls {
			return reqerr.Unsupported(req.Format.Path, "cannot be combined with tools, unless tool_choice is none")
		}
		if _, err := grammar.Parse(req.Format.Grammar); err != nil {
			return reqerr.InvalidValue(req.Format.Path, "cannot be read: %v", err)
		}
		p.Run.Constraint = &tandemv1.Guide{Grammar: req.Format.Grammar}
	} else if err := s.writeGrammar(m, req, p, calls); err != nil {
		return err
	}
	if req.Choice.Mode == ToolNone && req.Tools.Len() > 0 {
		if id, ok := special(m, toolcall.Opener(m.CallForm)); ok {
			if p.Run.Constraint == nil {
				p.Run.Constraint = &tandemv1.Guide{}
			}
			p.Run.Constraint.BannedTokens = append(p.Run.Constraint.BannedTokens, id)
		}
	}
	return nil
}

// writeGrammar makes the grammar of formats and calls, if one is needed.
func (s *Service) writeGrammar(m *model.Model, req *Request, p *Prepared, calls bool) error {
	w := grammar.NewWriter()
	root, warning, err := formatRule(w, req.Format)
	if err != nil {
		return err
	}
	if warning != "" {
		p.Warnings = append(p.Warnings, warning)
	}
	if root != "" && len(p.Run.Prompts) > 0 && p.Run.Prompts[0].Thinking {
		root = contentGap + root
	}
	must := req.Choice.Mode == ToolRequired || req.Choice.Mode == ToolNamed
	tools := req.Callable()
	if calls && (must || root != "" || tools.Strict() || tools.Len() < req.Tools.Len()) {
		_, marked := special(m, toolcall.Opener(m.CallForm))
		if !must && root == "" && !marked {
			// A grammar cannot distinguish text from calls. Calls of tools that are not allowed are then text.
			if tools.Strict() {
				p.Warnings = append(p.Warnings, "strict-ignored")
			}
			return nil
		}
		root, err = tools.Constrain(w, toolcall.Constraint{
			Form: m.CallForm, Mark: func(mark string) string { return terminal(m, mark) }, Must: must, Only: req.Choice.Name,
			Serial: !req.Parallel, Content: root,
		})
		var strict *toolcall.StrictError
		if errors.As(err, &strict) {
			path := cmp.Or(strict.Tool.Path, "tools")
			return reqerr.Unsupported(strings.TrimSuffix(path+"."+strict.Keyword, "."),
				"cannot be followed by a strict tool: %s", strict.Message)
		}
		if err != nil {
			return reqerr.Internal(err)
		}
	}
	if root == "" {
		return nil
	}
	w.Define("root", root)
	if _, err := grammar.Parse(w.Text()); err != nil { // a schema that begins with itself, or one that is too large
		return reqerr.Unsupported(cmp.Or(req.Format.Path, "tools"), "cannot be followed: %v", err)
	}
	p.Run.Constraint = &tandemv1.Guide{Grammar: w.Text()}
	return nil
}

// maxNamed keywords in a warning.
const maxNamed = 8

// formatRule is the rule of the content, empty when it is free, and a warning when only a part of a lenient schema
// is enforced.
func formatRule(w *grammar.Writer, f Format) (rule, warning string, err error) {
	switch f.Kind {
	case FormatJSONObject:
		return w.JSON("object"), "", nil
	case FormatJSONSchema:
		at := func(e *grammar.SchemaError) string { return strings.TrimSuffix(f.Path+"."+e.Path, ".") }
		var dropped []string
		o := grammar.SchemaOptions{Open: f.Lenient}
		if f.Lenient {
			o.Drop = func(e *grammar.SchemaError) {
				if len(dropped) < maxNamed {
					dropped = append(dropped, at(e))
				} else if len(dropped) == maxNamed {
					dropped = append(dropped, "...")
				}
			}
		}
		rule, err := w.SchemaWith(f.Schema, o)
		var se *grammar.SchemaError
		switch {
		case errors.As(err, &se) && f.Lenient && se.TooHard:
			return w.JSON("value"), "schema-not-followed: " + at(se), nil
		case errors.As(err, &se):
			return "", "", reqerr.Unsupported(at(se), "cannot be followed: %s", se.Message)
		case len(dropped) > 0:
			warning = "schema-partly-followed: " + strings.Join(dropped, ", ")
		}
		return rule, warning, err
	}
	return "", "", nil
}

// reasoning separates reasoning from content, for constraints of requests without a budget.
func reasoning(m *model.Model) func(int, bool) *tandemv1.Reasoning {
	return func(_ int, inside bool) *tandemv1.Reasoning {
		r := &tandemv1.Reasoning{Close: []int32{m.ThinkClose}, Inside: inside}
		if m.ThinkOpen != emit.None {
			r.Open = []int32{m.ThinkOpen}
		}
		return r
	}
}

// special finds a mark that is a token of its own.
func special(m *model.Model, mark string) (int32, bool) {
	id, ok := m.Tokenizer.ID(mark)
	if k := m.Tokenizer.TokenKind(id); !ok || k == tokenizer.KindNormal || k == tokenizer.KindByte {
		return 0, false
	}
	return id, true
}

// terminal of a mark in a grammar.
func terminal(m *model.Model, mark string) string {
	if id, ok := special(m, mark); ok {
		return grammar.Token(id)
	}
	return grammar.Quote(mark)
}
