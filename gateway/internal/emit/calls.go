package emit

import "github.com/tandem-inference/tandem/gateway/internal/toolcall"

// callSink makes an Emitter the toolcall.Output of its parser.
type callSink Emitter

// Text implements toolcall.Output.
func (o *callSink) Text(b []byte, end int) { (*Emitter)(o).match(b, end) }

// CallStart implements toolcall.Output. A stop string does not reach across a call.
func (o *callSink) CallStart(c *toolcall.Call) {
	e := (*Emitter)(o)
	if e.stopped == 0 {
		e.flush()
		e.add(ToolStart, c, nil)
	}
}

// CallArgs implements toolcall.Output.
func (o *callSink) CallArgs(c *toolcall.Call, fragment []byte) {
	if o.stopped == 0 {
		(*Emitter)(o).add(ToolArgs, c, fragment)
	}
}

// CallEnd implements toolcall.Output.
func (o *callSink) CallEnd(c *toolcall.Call) {
	if o.stopped == 0 {
		(*Emitter)(o).add(ToolEnd, c, nil)
		o.calls = append(o.calls, c)
	}
}

// flush shows content that waited because it could have been the start of a stop string.
func (e *Emitter) flush() {
	if e.stop != nil && e.stopped == 0 {
		e.show(e.pending, e.until)
		e.pending, e.stop.at = e.pending[:0], 0
	}
}

// Calls are the calls that were completed.
func (e *Emitter) Calls() []*toolcall.Call { return e.calls }

// ToolParseError says why markup that looked like a call is text or a repaired call, empty when nothing of the
// sort happened.
func (e *Emitter) ToolParseError() string {
	if e.cfg.Tools == nil {
		return ""
	}
	return e.cfg.Tools.Failure()
}
