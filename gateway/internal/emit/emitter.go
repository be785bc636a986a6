package emit

import (
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// None stands for a marker that the vocabulary does not have.
const None int32 = -1

// Config sets up an Emitter.
type Config struct {
	Tokenizer *tokenizer.Tokenizer
	// ThinkOpen and ThinkClose are the reasoning markers, None when the model has none. With both None all text is content.
	ThinkOpen, ThinkClose int32
	// Thinking says that the prompt ended with the open marker.
	Thinking bool
	// Stops are strings that end the generation when they appear in content.
	Stops []string
	// Logprobs keeps an Entry per content token.
	Logprobs bool
}

// Candidate is a token with its log-probability.
type Candidate struct {
	ID      int32
	Logprob float64
}

// Entry is one token of the content. Candidates are sorted by the sender.
type Entry struct {
	Candidate
	Top []Candidate

	start, end int // offsets in the content before stop matching
	open       bool
}

// Delta is what became visible. Reasoning precedes Content. Reasoning and Content are valid until the next Push or Finish.
type Delta struct {
	Reasoning []byte
	Content   []byte
	// Entries of the tokens whose text ends in this delta.
	Entries []Entry
}

// Empty reports whether there is nothing to send.
func (d Delta) Empty() bool {
	return len(d.Reasoning) == 0 && len(d.Content) == 0 && len(d.Entries) == 0
}

// Counts are token counts of one choice; Thinking includes the markers, Total all.
type Counts struct {
	Thinking, Total int
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

	thinking bool
	// reasoned is set once reasoning text was emitted: leading newlines end there.
	reasoned bool
	newlines []byte // trailing newlines of reasoning, held back
	lead     lead
	blank    []byte // whitespace that waits in leadHold
	pending  []byte // content that may be the start of a stop string

	fed     int // content bytes that reached the stop matcher
	emitted int // content bytes that left it
	entries []Entry
	counts  Counts
	closed  bool
	stopped int // 1 + index of the stop string that was found
	buf     []byte
	delta   Delta
	taken   bool // delta was handed out
}

// New returns an Emitter at the start of the output.
func New(cfg Config) *Emitter {
	e := &Emitter{cfg: cfg, dec: cfg.Tokenizer.NewDecoder(false), stop: newMatcher(cfg.Stops), thinking: cfg.Thinking}
	if cfg.ThinkOpen == None && cfg.ThinkClose == None {
		e.lead = leadDone
	}
	return e
}

// Push adds a token. It returns false when a stop string was completed: the generation is over and further tokens are ignored.
func (e *Emitter) Push(tok Entry) bool {
	e.begin()
	if e.stopped != 0 {
		return false
	}
	e.counts.Total++
	id := tok.ID
	switch {
	case id == e.cfg.ThinkClose && id != None && e.thinking:
		e.counts.Thinking++
		e.text(e.dec.AppendFlush(e.buf[:0]))
		e.thinking, e.closed, e.lead = false, true, leadDrop
		e.newlines = e.newlines[:0]
		return true
	case id == e.cfg.ThinkOpen && id != None && !e.thinking:
		if e.lead == leadHold {
			// Whitespace before the reasoning is nobody's text.
			e.counts.Thinking++
			e.blank, e.entries = e.blank[:0], e.entries[:0]
			e.dec.AppendFlush(e.buf[:0])
			e.thinking = true
		}
		return true
	case id == e.cfg.ThinkOpen && id != None, id == e.cfg.ThinkClose && id != None:
		// A marker where it has no meaning is not text either.
		if e.thinking {
			e.counts.Thinking++
		}
		return true
	}
	if e.thinking {
		e.counts.Thinking++
	}
	track := e.cfg.Logprobs && !e.thinking
	if track {
		tok.start = e.fed + len(e.blank)
		e.entries = append(e.entries, tok)
	}
	e.buf = e.dec.Append(e.buf[:0], id)
	e.text(e.buf)
	if track && e.stopped == 0 {
		e.mark()
	}
	return e.stopped == 0
}

// mark notes where the text of the newest tokens ends. A token that ends inside a character ends with the token that
// completes it; one whose whitespace waits ends behind that.
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
		e.reasoning(b)
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

// reasoning emits reasoning text without leading and trailing newlines.
func (e *Emitter) reasoning(b []byte) {
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
		e.delta.Reasoning = append(append(e.delta.Reasoning, e.newlines...), b[:j]...)
		e.newlines = e.newlines[:0]
	}
	e.newlines = append(e.newlines, b[j:]...)
}

// content sends text through the stop matcher.
func (e *Emitter) content(b []byte) {
	if e.stop == nil {
		e.delta.Content = append(e.delta.Content, b...)
		e.fed += len(b)
		e.emitted = e.fed
		return
	}
	e.pending = append(e.pending, b...)
	for _, c := range b {
		e.fed++
		if w := e.stop.push(c); w >= 0 {
			// The word ends at fed; everything before it goes out.
			keep := e.fed - len(e.stop.words[w]) - e.emitted
			e.delta.Content = append(e.delta.Content, e.pending[:keep]...)
			e.emitted += keep
			e.pending = e.pending[:0]
			e.stopped = w + 1
			return
		}
	}
	out := len(e.pending) - e.stop.held()
	e.delta.Content = append(e.delta.Content, e.pending[:out]...)
	e.emitted += out
	e.pending = e.pending[:copy(e.pending, e.pending[out:])]
}

// Finish ends the output: an unfinished character becomes U+FFFD, held back text goes out. Take returns the rest afterwards.
func (e *Emitter) Finish() {
	e.begin()
	if e.stopped == 0 {
		e.text(e.dec.AppendFlush(e.buf[:0]))
	}
	if e.stopped == 0 {
		if e.lead == leadHold && len(e.blank) > 0 {
			e.lead = leadDone
			e.content(e.blank)
			e.blank = e.blank[:0]
		}
		if e.stopped == 0 {
			e.delta.Content = append(e.delta.Content, e.pending...)
			e.emitted += len(e.pending)
			e.pending = e.pending[:0]
		}
	}
	for i := range e.entries {
		n := &e.entries[i]
		// Tokens that begin in the cut-off stop string go with it; the others are complete now.
		if e.stopped == 0 || n.start < e.emitted {
			n.open, n.end = false, min(n.end, e.emitted)
		} else {
			e.entries = e.entries[:i]
			break
		}
	}
}

// Take returns what became visible since the last call.
func (e *Emitter) Take() Delta {
	e.begin()
	d := e.delta
	if e.cfg.Logprobs {
		n := 0
		for n < len(e.entries) && !e.entries[n].open && e.entries[n].end <= e.emitted && e.lead == leadDone {
			n++
		}
		d.Entries = e.entries[:n]
		// The next tokens must not overwrite what was handed out.
		e.entries = append([]Entry(nil), e.entries[n:]...)
	}
	e.taken = true
	return d
}

// begin empties the delta after it was handed out.
func (e *Emitter) begin() {
	if e.taken {
		e.delta.Reasoning, e.delta.Content, e.taken = e.delta.Reasoning[:0], e.delta.Content[:0], false
	}
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
