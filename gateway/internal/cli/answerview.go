package cli

import (
	"fmt"
	"io"

	"github.com/tandem-inference/tandem/gateway/internal/markdown"
)

// answerView shows an answer while it comes: on a terminal with Markdown rendered and reasoning dim, elsewhere byte
// for byte.
type answerView struct {
	out      io.Writer
	style    style
	quiet    bool
	terminal bool
	markdown *markdown.Writer // nil: as it comes
	dim      bool             // reasoning is being shown
}

func newAnswerView(out io.Writer, quiet, render bool) *answerView {
	v := &answerView{out: out, style: newStyle(out), quiet: quiet, terminal: isTerminal(out)}
	if render && styled(out) {
		v.markdown = markdown.New(out)
	}
	return v
}

func (v *answerView) show(text string, reasoning bool) {
	if reasoning && v.quiet {
		return
	}
	if reasoning != v.dim {
		v.dim = reasoning
		if v.dim {
			v.flush()
			fmt.Fprint(v.out, v.style.dim)
		} else {
			fmt.Fprint(v.out, v.style.plain+"\n")
		}
	}
	switch {
	case v.markdown != nil && !reasoning:
		_, _ = v.markdown.Write([]byte(text))
	case v.terminal:
		fmt.Fprintf(v.out, "%s", markdown.Printable([]byte(text)))
	default:
		fmt.Fprint(v.out, text)
	}
}

func (v *answerView) flush() {
	if v.markdown != nil {
		_ = v.markdown.Flush()
	}
}

// end completes the last line.
func (v *answerView) end() {
	v.flush()
	if v.dim {
		fmt.Fprint(v.out, v.style.plain)
	}
	fmt.Fprintln(v.out)
}
