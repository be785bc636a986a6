package chattemplate

import (
	"errors"
	"fmt"
	"time"

	"github.com/tandem-inference/tandem/services/tokenizer"
)

// Error is a fault of a template, in its source or while it runs.
type Error struct {
	Line int    // line of the template, from 1
	Msg  string // what is wrong
	// Raised says that the template itself refused its input by raise_exception: the message is meant for whoever sent it.
	Raised bool
}

// Error gives "chat template, line N: message".
func (e *Error) Error() string { return fmt.Sprintf("chat template, line %d: %s", e.Line, e.Msg) }

func errorAt(line int, format string, args ...any) *Error {
	return &Error{Line: line, Msg: fmt.Sprintf(format, args...)}
}

// Limits bound what a template may use. Zero fields mean the defaults.
type Limits struct {
	// OutputBytes bounds the rendered text and every string on the way (default 64 MiB).
	OutputBytes int
	// MemoryBytes bounds what a rendering makes, in bytes: texts, lists and dictionaries together, also those that are no
	// longer needed (default 32 MiB, and 1024 bytes for each byte of the variables).
	MemoryBytes int
	// Steps bounds the work: one step for each statement, expression and item visited, and for each 64 bytes of text
	// handled (default 4 million, and 64 for each byte of the variables, at most 20 million, about a second).
	Steps int
	// Depth bounds calls of macros inside each other (default 64).
	Depth int
}

const (
	defaultOutputBytes = 64 << 20
	defaultMemoryBytes = 32 << 20
	memoryPerByte      = 1024
	defaultSteps       = 4_000_000
	stepsPerByte       = 64
	maxSteps           = 20_000_000
	defaultDepth       = 64
)

// Template is a compiled chat template. It is immutable and safe for concurrent use once its fields are set.
type Template struct {
	// Limits bound each rendering.
	Limits Limits
	// Now is the clock of strftime_now; nil means time.Now.
	Now func() time.Time

	body []stmt
}

// Compile reads a template. Everything that the package does not have (tags, filters, tests) is an error here rather
// than while rendering, so that a caller can fall back at start; but a filter or test in a branch of an if is an error
// only when the branch runs. Errors are of type *Error.
func Compile(src string) (*Template, error) {
	if len(src) > maxSourceBytes {
		return nil, errorAt(1, "template has %d bytes, at most %d allowed", len(src), maxSourceBytes)
	}
	toks, err := lex(src)
	if err != nil {
		return nil, err
	}
	p := &parser{toks: toks}
	body, err := p.body()
	if err != nil {
		return nil, err
	}
	if len(p.unknown) > 0 {
		return nil, p.unknown[0]
	}
	return &Template{body: body}, nil
}

// Render runs the template with the given variables and gives its text. Errors are of type *Error.
func (t *Template) Render(vars *Dict) (string, error) {
	out, err := t.run(vars)
	if err != nil {
		return "", err
	}
	return string(out.b), nil
}

// RenderSegments is Render with the text cut where its origin changes: Special segments are the template's own (or
// Trusted) text, the others came in with the variables. Joined they are what Render gives. They go straight
// into tokenizer.EncodeSegments.
func (t *Template) RenderSegments(vars *Dict) ([]tokenizer.Segment, error) {
	out, err := t.run(vars)
	if err != nil {
		return nil, err
	}
	var segs []tokenizer.Segment
	text := string(out.b)
	pos := 0
	for _, u := range out.user {
		if u.start > pos {
			segs = append(segs, tokenizer.Segment{Text: text[pos:u.start], Special: true})
		}
		segs = append(segs, tokenizer.Segment{Text: text[u.start:u.end]})
		pos = u.end
	}
	if pos < len(text) {
		segs = append(segs, tokenizer.Segment{Text: text[pos:], Special: true})
	}
	return segs, nil
}

func (t *Template) run(vars *Dict) (*strBuilder, error) {
	in := newInterp(t)
	in.grow(vars)
	root := &frame{vars: map[string]Value{}, parent: &frame{vars: globals()}}
	if vars != nil {
		for i, k := range vars.keys {
			if name, ok := k.(Str); ok {
				root.parent.vars[name.s] = vars.vals[i]
			}
		}
	}
	in.frame = root
	in.out = &strBuilder{}
	_, err := in.exec(t.body)
	if err != nil {
		var te *Error
		if !errors.As(err, &te) {
			te = &Error{Line: 1, Msg: err.Error()}
		}
		return nil, te
	}
	return in.out, nil
}
