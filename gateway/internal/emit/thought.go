package emit

import (
	"bytes"

	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
)

// finder looks for calls in open reasoning. Some models write a call before they close their reasoning and end their
// turn: that call counts. Others only mention one while they plan, and reason on: that is reasoning.
//
// So from the mark that opens a call on, text is held back and tried on a parser of its own. What does not go on as a
// complete call of a declared tool is reasoning again at once. Calls count when nothing but whitespace, further calls
// and a close marker stands between them and the end of the turn; when text follows, they were part of the reasoning.
type finder struct {
	make func() *toolcall.Parser

	held   []byte           // text that waits: a mark in progress or, while try is set, everything from the mark on
	mark   int              // bytes at the end of held that may be the start of a mark
	begin  int              // reasoning tokens before the one in which the last '<' stands
	from   int              // begin of the mark that try began with
	try    *toolcall.Parser // nil = no mark was found
	found  int              // complete calls
	failed bool             // the text is no call
	closed bool             // a close marker stands after the calls
}

// Text implements toolcall.Output: text is no call.
func (f *finder) Text([]byte, int) { f.failed = true }

// CallStart implements toolcall.Output.
func (f *finder) CallStart(*toolcall.Call) {}

// CallArgs implements toolcall.Output.
func (f *finder) CallArgs(*toolcall.Call, []byte) {}

// CallEnd implements toolcall.Output. A call that had to be repaired is none.
func (f *finder) CallEnd(*toolcall.Call) {
	f.found++
	f.failed = f.failed || f.try.Failure() != ""
}

// complete reports whether the text so far is calls and nothing else.
func (f *finder) complete() bool {
	return f.try != nil && !f.failed && f.found > 0 && !f.try.Inside() && f.mark == 0
}

// close notes a close marker. It returns false when it ends the reasoning at once.
func (f *finder) close() bool {
	f.closed = f.complete()
	return f.closed
}

// thought takes text of the reasoning.
func (e *Emitter) thought(b []byte) {
	f := e.finder
	if f == nil {
		e.reasoning(b)
		return
	}
	for len(b) > 0 {
		if len(f.held) == 0 {
			n := bytes.IndexByte(b, '<')
			if n < 0 {
				n = len(b)
			}
			e.reasoning(b[:n])
			if b = b[n:]; len(b) == 0 {
				return
			}
		}
		e.seek(b[0])
		b = b[1:]
	}
}

// seek reads a byte of reasoning that is part of a mark or after one.
func (e *Emitter) seek(c byte) {
	f := e.finder
	f.held = append(f.held, c)
	mark := f.spell(c)
	if f.mark == 1 {
		f.begin = e.counts.Thinking - 1
	}
	switch {
	case mark == "" && f.try == nil:
		e.release(f.mark)
	case mark != "" && (f.try == nil || f.try.Inside()):
		// A mark inside of a call that is not complete: what came before only looked like one.
		e.release(len(mark))
		f.try, f.from = f.make(), f.begin
		f.try.Push(f.held, f)
	default:
		f.try.Push(f.held[len(f.held)-1:], f)
		if f.failed {
			e.release(f.mark)
		}
	}
}

// spell reads a byte and returns the mark that ends with it, empty when none does. Marks begin with the only '<'
// they have.
func (f *finder) spell(c byte) (mark string) {
	if f.mark++; f.mark == 1 && c != '<' {
		f.mark = 0
		return ""
	}
	mark, part := toolcall.OpensCall(f.held[len(f.held)-f.mark:], f.try != nil)
	switch {
	case mark != "":
		f.mark = 0
	case part:
	case c == '<':
		f.mark = 1
	default:
		f.mark = 0
	}
	return mark
}

// release makes what is held reasoning, but for its last keep bytes, and ends the trial.
func (e *Emitter) release(keep int) {
	f := e.finder
	n := len(f.held) - keep
	e.reasoning(f.held[:n])
	f.held = f.held[:copy(f.held, f.held[n:])]
	f.try, f.found, f.failed, f.closed = nil, 0, false, false
}

// settle ends the search for calls: those that were found become content, or reasoning like everything else that
// is held.
func (e *Emitter) settle(calls bool) {
	f := e.finder
	if f == nil || len(f.held) == 0 {
		return
	}
	if !calls {
		e.release(0)
		f.mark = 0
		return
	}
	tokens := e.counts.Thinking - f.from
	e.counts.Thinking -= tokens
	e.counts.Tool += tokens
	held := f.held
	f.held, f.try, f.mark, f.closed = nil, nil, 0, false
	e.closed = true
	e.endThinking(false)
	e.lead = leadDone
	e.content(held)
}

// finishThought ends reasoning that the output ends in.
func (e *Emitter) finishThought(cut bool) {
	f := e.finder
	if f == nil || f.try == nil {
		e.settle(false)
		return
	}
	// Closing marks at the end may be missing.
	f.try.Finish(cut, f)
	complete := !f.failed && f.found > 0
	closed := f.closed
	if e.settle(complete); !complete && closed {
		e.endThinking(true)
	}
}
