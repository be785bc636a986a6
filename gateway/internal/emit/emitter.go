package emit

import (
	"bytes"
	"math"
	"slices"

	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// None stands for a marker that the vocabulary does not have.
const None int32 = -1

// Config sets up an Emitter.
type Config struct {
	Tokenizer *tokenizer.Tokenizer
	// ThinkOpen and ThinkClose are the reasoning markers, None when the model has none. With both None all text
	// is content.
	ThinkOpen, ThinkClose int32
	// ThinkLabel is text after the open marker that belongs to it, such as the name of a channel; empty = none.
	ThinkLabel string
	// Thinking says that the prompt ended with the open marker.
	Thinking bool
	// Aloud leaves reasoning in the content, as it was written and with its markers. Opened is the part of it that the
	// prompt wrote: the open marker and what follows it. Stops do not apply to it, and Entries do not cover it.
	Aloud  bool
	Opened string
	// Stops are strings that end the generation when they appear in content.
	Stops []string
	// Logprobs keeps an Entry per content token.
	Logprobs bool
	// Tools finds calls in the content; nil = there are none.
	Tools *toolcall.Parser
	// Trial makes a parser that tries whether markup in open reasoning is a call, see finder; nil = no call
	// ends reasoning.
	Trial func() *toolcall.Parser
	// Literal are control tokens whose text is read like any other: the markup of calls.
	Literal []int32
}

// Counts are token counts of one choice; Thinking includes the markers, Tool is the markup of calls, Total all.
type Counts struct {
	Thinking, Tool, Total int
}

// ways of whitespace at the start of the content
type lead uint8

const (
	leadHold lead = iota // nothing visible yet: whitespace waits, an open marker may follow
	leadDrop             // right after a close marker: whitespace goes
	leadDone             // visible text has begun
)

// Emitter is the state of one choice.
type Emitter struct {
	cfg  Config
	dec  *tokenizer.Decoder
	stop *matcher

	thinking  bool
	finder    *finder // looks for calls in reasoning; nil = none are looked for
	label     string  // what may still come of the open marker's label
	aside     []Entry // tokens of a channel in the answer, which may turn out to be empty
	asideText []byte  // what they spell
	// reasoned is set once reasoning text was emitted: leading newlines end there.
	reasoned bool
	newlines []byte // trailing newlines of reasoning, held back
	lead     lead
	blank    []byte // whitespace that waits in leadHold
	pending  []byte // content that may be the start of a stop string
	until    int    // offset after pending

	fed      int // content bytes so far
	calls    []*toolcall.Call
	entries  []Entry
	seen     []span // content bytes that became visible, as far back as entries need them
	counts   Counts
	closed   bool
	stopped  int  // 1 + index of the stop string that was found
	cut      int  // offset at which that stop string begins
	finished bool // nothing is held back any more

	buf    []byte
	out    []byte // text of events
	events []Event
	taken  bool // events were handed out
}

// New returns an Emitter at the start of the output.
func New(cfg Config) *Emitter {
	e := &Emitter{cfg: cfg, dec: cfg.Tokenizer.NewDecoder(false), stop: newMatcher(cfg.Stops), thinking: cfg.Thinking}
	if cfg.ThinkOpen == None && cfg.ThinkClose == None {
		e.lead = leadDone
	}
	if cfg.Trial != nil {
		e.finder = &finder{make: cfg.Trial}
	}
	e.aloud([]byte(cfg.Opened))
	return e
}

// Push adds a token. It returns false when a stop string or the only call that is allowed was completed: the generation
// is over and further tokens are ignored.
//
// An open marker that is the first visible thing of the output opens reasoning, a close marker ends open reasoning.
// Everywhere else both are text.
func (e *Emitter) Push(tok Entry) bool {
	e.begin()
	if e.over() {
		return false
	}
	e.counts.Total++
	id := tok.ID
	opens, closes := id == e.cfg.ThinkOpen && id != None, id == e.cfg.ThinkClose && id != None
	if len(e.aside) > 0 || opens && !e.thinking && e.cfg.ThinkLabel != "" && e.lead != leadHold && !e.inside() {
		return e.channel(tok, closes)
	}
	switch {
	case closes && e.thinking && (e.finder == nil || !e.finder.closed):
		e.counts.Thinking++
		e.text(e.dec.AppendFlush(e.buf[:0]))
		e.closed = true
		if e.finder != nil && e.finder.close() {
			return true
		}
		e.settle(false)
		e.endThinking(true)
		return true
	case opens && !e.thinking && e.lead == leadHold && e.dec.Held() == 0:
		// Whitespace before the reasoning is dropped.
		e.counts.Thinking++
		e.aloud(e.blank)
		e.aloud(e.cfg.Tokenizer.TokenBytes(id))
		e.blank, e.entries = e.blank[:0], e.entries[:0]
		e.thinking, e.label = true, e.cfg.ThinkLabel
		return true
	}
	return e.write(tok, opens || closes)
}

// write takes a token that is text. marker says that it is a reasoning marker without a meaning.
func (e *Emitter) write(tok Entry, marker bool) bool {
	e.buf = e.decode(e.buf[:0], tok.ID, marker)
	if e.finder != nil && e.finder.closed {
		if skipSpace(e.buf) == len(e.buf) && e.dec.Held() == 0 {
			return true
		}
		// The reasoning was closed and the answer follows: the calls in it were part of it.
		e.settle(false)
		e.endThinking(true)
	}
	if e.thinking {
		e.counts.Thinking++
	}
	inside := e.inside()
	track := e.cfg.Logprobs && !e.thinking
	if track {
		tok.start, tok.hidden = e.fed+len(e.blank), inside
		e.entries = append(e.entries, tok)
	}
	e.text(e.buf)
	if inside || e.inside() {
		e.counts.Tool++
	}
	if track && e.stopped == 0 {
		e.mark()
	}
	return !e.over()
}

// decode appends the text that becomes complete with a token. Control tokens have no text, except as markup of calls
// and inside a call's arguments, where they belong to the file that the model writes. marker says that the token is a
// reasoning marker without a meaning, which is text. Those with a label are parts of a channel and stay control tokens.
func (e *Emitter) decode(dst []byte, id int32, marker bool) []byte {
	if e.cfg.Tokenizer.TokenKind(id) != tokenizer.KindControl {
		return e.dec.Append(dst, id)
	}
	literal := marker && e.cfg.ThinkLabel == ""
	if e.thinking {
		literal = literal || e.finder != nil && slices.Contains(e.cfg.Literal, id)
	} else {
		literal = literal || slices.Contains(e.cfg.Literal, id) || e.cfg.Tools != nil && e.cfg.Tools.InCall()
	}
	if !literal {
		return dst
	}
	return append(e.dec.AppendFlush(dst), e.cfg.Tokenizer.TokenBytes(id)...)
}

// channel takes a token after an open marker with a label that stands in the answer. A channel without any text is
// markup; once it has text, all of it is text.
func (e *Emitter) channel(tok Entry, closes bool) bool {
	if len(e.aside) > 0 && e.cfg.Tokenizer.TokenKind(tok.ID) != tokenizer.KindControl {
		e.asideText = append(e.asideText, e.cfg.Tokenizer.TokenBytes(tok.ID)...)
	}
	e.aside = append(e.aside, tok)
	rest, labelled := bytes.CutPrefix(e.asideText, []byte(e.cfg.ThinkLabel))
	empty := len(e.asideText) == 0 || labelled && skipSpace(rest) == len(rest)
	switch {
	case closes && empty:
		e.counts.Thinking += len(e.aside)
		e.aside, e.asideText = e.aside[:0], e.asideText[:0]
	case closes || !empty && !bytes.HasPrefix([]byte(e.cfg.ThinkLabel), e.asideText):
		e.replay()
	}
	return !e.over()
}

// replay writes the tokens of a channel that is text.
func (e *Emitter) replay() {
	for _, tok := range e.aside {
		if e.over() {
			break
		}
		e.write(tok, tok.ID == e.cfg.ThinkOpen || tok.ID == e.cfg.ThinkClose)
	}
	e.aside, e.asideText = e.aside[:0], e.asideText[:0]
}

// aloud shows reasoning or its markup in the content; without Aloud it does nothing. Reasoning comes before everything
// else, so the offsets of content, which leave it out, stay those of the answer.
func (e *Emitter) aloud(b []byte) {
	if e.cfg.Aloud && len(b) > 0 {
		e.add(Content, nil, b)
	}
}

// endThinking begins the content, after a close marker or after a call in open reasoning.
func (e *Emitter) endThinking(marker bool) {
	e.thinking, e.lead = false, leadDrop
	if e.cfg.Aloud {
		e.lead = leadDone
		if marker {
			e.aloud(e.cfg.Tokenizer.TokenBytes(e.cfg.ThinkClose))
		}
	}
	e.newlines = e.newlines[:0]
}

// inside reports whether the text is inside of a call's markup.
func (e *Emitter) inside() bool { return e.cfg.Tools != nil && !e.thinking && e.cfg.Tools.Inside() }

// over reports that nothing may follow.
func (e *Emitter) over() bool { return e.stopped != 0 || e.cfg.Tools != nil && e.cfg.Tools.Done() }

// mark notes where the text of the newest tokens ends. A token that ends inside a character ends with the token that
// completes it; one whose whitespace waits ends after that.
func (e *Emitter) mark() {
	at := e.fed + len(e.blank)
	for i := len(e.entries) - 1; i >= 0; i-- {
		n := &e.entries[i]
		if i < len(e.entries)-1 && !n.open {
			break
		}
		n.end, n.open = at, e.dec.Held() > 0
	}
	if e.lead == leadDrop {
		// Whitespace after the close marker was dropped together with its token.
		if n := &e.entries[len(e.entries)-1]; !n.open {
			e.entries = e.entries[:0]
		}
	}
}

// text routes decoded text to reasoning or content.
func (e *Emitter) text(b []byte) {
	if len(b) == 0 {
		return
	}
	if e.thinking {
		e.thought(b)
		return
	}
	switch e.lead {
	case leadDone:
		e.content(b)
	case leadHold:
		if i := skipSpace(b); i == len(b) {
			e.blank = append(e.blank, b...)
			return
		}
		e.lead = leadDone
		if len(e.blank) > 0 {
			e.content(e.blank)
			e.blank = e.blank[:0]
		}
		if e.stopped == 0 {
			e.content(b)
		}
	case leadDrop:
		if i := skipSpace(b); i < len(b) {
			e.lead = leadDone
			e.content(b[i:])
		}
	}
}

// reasoning emits reasoning text without leading and trailing newlines, or in the content as it is.
func (e *Emitter) reasoning(b []byte) {
	if e.cfg.Aloud {
		e.aloud(b)
		return
	}
	if e.label != "" {
		n := 0
		for n < len(b) && n < len(e.label) && b[n] == e.label[n] {
			n++
		}
		switch {
		case n == len(e.label):
			e.label = ""
		case n == len(b):
			e.label = e.label[n:]
			return
		default:
			// No label: what looked like its start is reasoning.
			began := e.cfg.ThinkLabel[:len(e.cfg.ThinkLabel)-len(e.label)]
			e.label = ""
			e.reasoning(append([]byte(began), b...))
			return
		}
		if b = b[n:]; len(b) == 0 {
			return
		}
	}
	if !e.reasoned {
		i := 0
		for i < len(b) && (b[i] == '\n' || b[i] == '\r') {
			i++
		}
		if b = b[i:]; len(b) == 0 {
			return
		}
		e.reasoned = true
	}
	j := len(b)
	for j > 0 && (b[j-1] == '\n' || b[j-1] == '\r') {
		j--
	}
	if j > 0 {
		e.add(Reasoning, nil, e.newlines)
		e.add(Reasoning, nil, b[:j])
		e.newlines = e.newlines[:0]
	}
	e.newlines = append(e.newlines, b[j:]...)
}

// content takes text of the content stage.
func (e *Emitter) content(b []byte) {
	e.fed += len(b)
	if e.cfg.Tools != nil {
		e.cfg.Tools.Push(b, (*callSink)(e))
		return
	}
	e.match(b, e.fed)
}

// match sends visible text, which ends at offset end, through the stop matcher.
func (e *Emitter) match(b []byte, end int) {
	if e.stopped != 0 {
		return
	}
	if e.stop == nil {
		e.show(b, end)
		return
	}
	e.pending, e.until = append(e.pending, b...), end
	for i, c := range b {
		if w := e.stop.push(c); w >= 0 {
			// The word ends here; everything before it goes out.
			cut := len(b) - i - 1 + len(e.stop.words[w])
			e.show(e.pending[:len(e.pending)-cut], end-cut)
			e.pending = e.pending[:0]
			e.stopped, e.cut = w+1, end-cut
			return
		}
	}
	held := e.stop.held()
	e.show(e.pending[:len(e.pending)-held], end-held)
	e.pending = e.pending[:copy(e.pending, e.pending[len(e.pending)-held:])]
}

// decided is the offset in the content before which nothing is held back.
func (e *Emitter) decided() int {
	if e.finished || e.stopped != 0 {
		return math.MaxInt
	}
	switch {
	case len(e.pending) > 0:
		return e.until - len(e.pending)
	case e.cfg.Tools != nil:
		return e.cfg.Tools.Decided()
	}
	return e.fed
}

// Finish ends the output: an unfinished character becomes U+FFFD, held back text goes out. cut says that it ends
// because there was no more room: a call that is not complete then has no ToolEnd. Take returns the rest afterwards.
func (e *Emitter) Finish(cut bool) {
	e.begin()
	e.replay()
	if e.stopped == 0 {
		e.text(e.dec.AppendFlush(e.buf[:0]))
		for i := range e.entries {
			if n := &e.entries[i]; n.open {
				n.end = e.fed + len(e.blank)
			}
		}
		if e.thinking {
			e.finishThought(cut)
		}
	}
	if e.stopped == 0 {
		if e.lead == leadHold && len(e.blank) > 0 {
			e.lead = leadDone
			e.content(e.blank)
			e.blank = e.blank[:0]
		}
		if e.stopped == 0 && e.cfg.Tools != nil {
			e.cfg.Tools.Finish(cut, (*callSink)(e))
		}
		e.flush()
	}
	for i := range e.entries {
		e.entries[i].open = false
	}
	e.lead, e.finished = leadDone, true
}

// StopString returns the stop string that was found, false when none was.
func (e *Emitter) StopString() (string, bool) {
	if e.stopped == 0 {
		return "", false
	}
	return e.cfg.Stops[e.stopped-1], true
}

// Counts returns the token counts so far.
func (e *Emitter) Counts() Counts { return e.counts }

// Closed reports whether the model closed its reasoning itself.
func (e *Emitter) Closed() bool { return e.closed }

// Thought reports whether there was any reasoning state: the output began in it or the model opened it.
func (e *Emitter) Thought() bool { return e.cfg.Thinking || e.counts.Thinking > 0 }

// skipSpace returns the length of the run of ASCII whitespace at the start of b.
func skipSpace(b []byte) int {
	i := 0
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}
