package toolcall

import (
	"bytes"
	"fmt"
)

// Output receives what a Parser finds, in the order of the text. Slices are valid during the call.
type Output interface {
	// Text is visible text, a part of what was pushed; end is the offset after it, counted from the first byte pushed.
	Text(b []byte, end int)
	// CallStart announces a call: its name is known and allowed.
	CallStart(c *Call)
	// CallArgs is the next part of the JSON of its arguments.
	CallArgs(c *Call, fragment []byte)
	// CallEnd completes it.
	CallEnd(c *Call)
}

// Config of a Parser.
type Config struct {
	Set    *Set
	Family Family
	// Serial ends the turn after the first complete call.
	Serial bool
	// NewID makes the id of a call.
	NewID func() string
}

// Parser finds calls in a text that comes in pieces. It looks at one byte at a time, so that what it finds does not
// depend on where the text was cut. What is not part of a call comes out as text. Not safe for concurrent use.
//
// Outside of calls it looks for openers; whitespace at the start and after a call waits, because it is dropped when a
// call follows. An opener starts a region, in which the machine of a format reads. Until the machine announces a call,
// the region may still turn out to be text.
type Parser struct {
	cfg Config
	out Output
	one [1]byte

	pos    int    // bytes read
	blank  []byte // whitespace that waits for what follows
	opener []byte // start of what may be an opener
	edge   bool   // nothing but whitespace since the start or the last call
	shown  bool   // some text was visible
	gap    []byte // whitespace at the end of the visible text
	stray  bool   // a bare call ended here: an outer closer may follow and is nobody's

	machine machine
	region  []byte // what the region holds since its opener, or since its last call
	from    int    // offset of region
	between bool   // the region had a call already
	mute    bool   // the region's markup is read but it is text: its tool is unknown
	muted   bool   // what came before in the region was text
	sent    int    // bytes of region that a mute region sent

	call     *Call
	argument []byte // arguments of call so far
	fragment []byte // those that were not handed over yet
	fields   int    // members of call's arguments so far
	calls    int
	failure  string
	finished bool
}

// verdict of a machine on a byte.
type verdict uint8

const (
	more   verdict = iota
	over           // the region ends with this byte
	bad            // the byte, or the mark that it ends, does not fit
	before         // scanner only: the value ended before this byte
)

// ending is the state of a machine when no more is read.
type ending uint8

const (
	endOpen     ending = iota // the call's arguments are incomplete
	endOptional               // complete, if closing marks of the arguments may be missing
	endComplete               // the arguments are complete
)

// machine reads the markup of one region.
type machine interface {
	push(c byte) verdict
	// pending is the number of last bytes that are not decided: a mark in progress, or what did not fit. They are read
	// again as text when the region breaks.
	pending() int
	// ending tells how far the present call came.
	ending() ending
	// repair completes the JSON of arguments that cannot be read further.
	repair()
	// cut hands over what of the arguments waits for more, when no more comes: the start of their JSON.
	cut()
}

// NewParser returns a parser at the start of a text.
func NewParser(cfg Config) *Parser { return &Parser{cfg: cfg, edge: true} }

// Push reads a piece of text.
func (p *Parser) Push(b []byte, out Output) {
	p.out = out
	for len(b) > 0 && !p.Done() {
		if n := p.plain(b); n > 0 {
			p.pos += n
			p.text(b[:n], p.pos)
			b = b[n:]
			continue
		}
		p.step(b[0])
		b = b[1:]
	}
	p.flush()
}

// plain is the length of the start of b that is text without a doubt.
func (p *Parser) plain(b []byte) int {
	if p.machine != nil || p.edge || len(p.opener) > 0 {
		return 0
	}
	if n := bytes.IndexByte(b, '<'); n >= 0 {
		return n
	}
	return len(b)
}

// Done reports that the turn is over because a call was completed and only one is allowed.
func (p *Parser) Done() bool { return p.cfg.Serial && p.calls > 0 }

// Inside reports whether the text is inside of a call's markup, as far as one can tell.
func (p *Parser) Inside() bool { return p.machine != nil && !p.mute }

// InCall reports whether the text is inside of a call that was announced.
func (p *Parser) InCall() bool { return p.call != nil }

// Decided is the offset before which it is known what is text and what is not.
func (p *Parser) Decided() int {
	switch {
	case p.machine == nil:
		return p.pos - len(p.opener) - len(p.blank)
	case p.mute:
		return p.from + p.sent
	case p.call != nil:
		return p.pos - p.machine.pending()
	}
	return p.from - len(p.blank)
}

// Failure says why markup that looked like a call is text or a repaired call, empty when nothing of the sort happened.
func (p *Parser) Failure() string { return p.failure }

// Finish ends the text. cut says that there was no more room: a call that is not complete then has its arguments as far
// as they came and no end; markup that has not become a call yet is dropped, and text if there are arguments in it.
// Otherwise what is missing is repaired.
func (p *Parser) Finish(cut bool, out Output) {
	if p.finished {
		return
	}
	p.out, p.finished = out, true
	if p.Done() {
		return
	}
	if p.machine != nil {
		p.finishRegion(cut)
	}
	if len(p.opener) > 0 {
		p.lose(p.opener, p.pos)
		p.opener = p.opener[:0]
	}
	if p.calls == 0 {
		p.release(p.pos)
	}
	p.flush()
}

func (p *Parser) finishRegion(cut bool) {
	if b, ok := p.machine.(*envelope); ok && b.bare() {
		b.deliver()
	}
	end := p.machine.ending()
	switch {
	case p.mute:
		p.send(len(p.region))
	case p.call != nil && end == endComplete:
		p.end()
	case p.call != nil && cut:
		p.machine.cut()
		p.flush()
		p.call = nil
	case p.call != nil:
		if end == endOpen {
			p.fail("the call of %s ends in the middle", p.call.Name)
		}
		p.machine.repair()
		p.end()
	case p.between:
		p.leftover(len(p.region))
	case cut && !p.quiet() && !p.nameless():
		p.blank = p.blank[:0]
	default:
		p.markupIsText(len(p.region), "a call ends in the middle")
	}
	p.leave()
}

// step reads one byte.
func (p *Parser) step(c byte) {
	p.pos++
	if p.machine == nil {
		p.outside(c)
		return
	}
	p.region = append(p.region, c)
	p.feed(c)
}

// feed gives the machine a byte that is in the region already.
func (p *Parser) feed(c byte) {
	switch p.machine.push(c) {
	case more:
		if p.mute {
			p.send(len(p.region) - p.machine.pending())
		}
	case over:
		switch {
		case p.mute || p.muted:
			p.send(len(p.region))
		case !p.between:
			p.markupIsText(len(p.region), "there is no call in the markup for calls")
		}
		p.leave()
	default:
		p.broken()
	}
}

// broken handles a byte that does not fit the markup: what comes after the last mark is read again as text.
func (p *Parser) broken() {
	keep := len(p.region) - p.machine.pending()
	tail := bytes.Clone(p.region[keep:])
	p.region = p.region[:keep]
	p.pos -= len(tail)
	switch {
	case p.mute:
		p.send(keep)
	case p.call != nil:
		if p.machine.ending() != endComplete {
			p.fail("the markup of the call of %s is malformed", p.call.Name)
			p.machine.repair()
		}
		p.end()
	case p.between:
		p.leftover(keep)
	default:
		p.markupIsText(keep, "the markup of a call is malformed")
	}
	p.leave()
	for _, c := range tail {
		if p.Done() {
			return
		}
		p.step(c)
	}
}

// quiet reports that the region was no more than a guess, so that its end as text is nothing to report.
func (p *Parser) quiet() bool {
	e, ok := p.machine.(*envelope)
	return ok && e.bare()
}

// nameless reports that the region has arguments of a call whose name has not come.
func (p *Parser) nameless() bool {
	e, ok := p.machine.(*envelope)
	return ok && len(e.args) > 0
}

// markupIsText sends the first n bytes of the region, which never became a call.
func (p *Parser) markupIsText(n int, why string) {
	if !p.quiet() {
		p.fail("%s", why)
	}
	p.release(p.from)
	p.text(p.region[:n], p.from+n)
}

// leftover handles what stands after the last call of a region: nothing but whitespace and the start of a closing mark
// is dropped, the rest is text.
func (p *Parser) leftover(n int) {
	b := p.region[:n]
	rest := bytes.TrimLeft(b, " \t\r\n]")
	if p.muted || len(rest) > 0 && !closes(rest) {
		p.text(b, p.from+n)
	}
}

// closes reports whether b is the start of a mark that closes a region.
func closes(b []byte) bool {
	for _, m := range []string{closeToolCall, closeToolCode, closeFunctionCalls, closeDeepSeek} {
		if bytes.HasPrefix([]byte(m), b) {
			return true
		}
	}
	return false
}

// announce starts a call of the tool, or finds that there is none of that name and makes the region text.
func (p *Parser) announce(name string, f Format) {
	t := p.cfg.Set.Get(name)
	if t == nil {
		p.fail("%q is no tool of this request", name)
		p.release(p.from)
		p.mute, p.sent = true, 0
		return
	}
	p.flush()
	p.call = &Call{Index: p.calls, ID: p.cfg.NewID(), Name: name, Tool: t, Format: f, Gap: string(p.gap) + string(p.blank)}
	p.blank = p.blank[:0]
	p.argument, p.fields = p.argument[:0], 0
	p.out.CallStart(p.call)
}

// end completes the present call, or the markup of an unknown one. The region goes on after it.
func (p *Parser) end() { p.endAt(len(p.region)) }

// endAt is end for a call that took the first n bytes of the region.
func (p *Parser) endAt(n int) {
	p.muted = p.mute
	if p.mute {
		p.send(n)
	} else {
		p.flush()
		c := p.call
		c.Arguments, c.Raw = string(p.argument), string(p.region[:n])
		p.call = nil
		p.calls++
		p.gap = p.gap[:0]
		p.edge, p.stray = true, c.Format == BareXML || c.Format == Signature
		p.out.CallEnd(c)
	}
	p.region = append(p.region[:0], p.region[n:]...)
	p.from, p.between, p.mute, p.sent = p.pos-len(p.region), true, false, 0
}

// member starts a member of the call's arguments.
func (p *Parser) member(key []byte) {
	if p.fields == 0 {
		p.fragment = append(p.fragment, '{')
	} else {
		p.fragment = append(p.fragment, ", "...)
	}
	p.fields++
	p.fragment = appendQuoted(p.fragment, string(key))
	p.fragment = append(p.fragment, ": "...)
}

// closeObject ends the arguments.
func (p *Parser) closeObject() {
	if p.fields == 0 {
		p.fragment = append(p.fragment, '{')
	}
	p.fragment = append(p.fragment, '}')
}

// flush hands over the arguments so far.
func (p *Parser) flush() {
	if p.call != nil && len(p.fragment) > 0 {
		p.argument = append(p.argument, p.fragment...)
		p.out.CallArgs(p.call, p.fragment)
	}
	p.fragment = p.fragment[:0]
}

// send makes the region visible up to its byte n.
func (p *Parser) send(n int) {
	if n > p.sent {
		p.text(p.region[p.sent:n], p.from+n)
		p.sent = n
	}
}

// lose makes b visible, which ends at offset end, and the whitespace before it.
func (p *Parser) lose(b []byte, end int) {
	p.release(end - len(b))
	p.text(b, end)
}

// release makes waiting whitespace visible, which ends at offset end.
func (p *Parser) release(end int) {
	if len(p.blank) > 0 {
		p.text(p.blank, end)
		p.blank = p.blank[:0]
	}
}

// leave goes back to text.
func (p *Parser) leave() {
	p.machine, p.mute, p.muted, p.between, p.sent, p.region = nil, false, false, false, 0, p.region[:0]
}

func (p *Parser) text(b []byte, end int) {
	if len(b) > 0 {
		p.edge, p.stray, p.shown = false, false, true
		p.trail(b)
		p.out.Text(b, end)
	}
}

// maxGap bounds the whitespace that is remembered before a call.
const maxGap = 64

// trail notes the whitespace at the end of the text, which b continues.
func (p *Parser) trail(b []byte) {
	n := len(b)
	for n > 0 && isSpace(b[n-1]) {
		n--
	}
	if n > 0 {
		p.gap = p.gap[:0]
	}
	if len(p.gap)+len(b)-n <= maxGap {
		p.gap = append(p.gap, b[n:]...)
	}
}

func (p *Parser) fail(format string, args ...any) {
	if p.failure == "" {
		p.failure = fmt.Sprintf(format, args...)
	}
}
