package emit

import "github.com/tandem-inference/tandem/gateway/internal/toolcall"

// Kind of an Event.
type Kind uint8

// The kinds of events. Of one choice come, in the order of the text: any mix of Reasoning and Content; of each tool
// call one ToolStart, its ToolArgs, one ToolEnd, with nothing in between. A call that the token limit cut off is the
// last and has no ToolEnd.
const (
	// Reasoning is text of the reasoning.
	Reasoning Kind = iota
	// Content is visible text.
	Content
	// ToolStart announces a call: its index, id and name are known.
	ToolStart
	// ToolArgs is the next part of the call's arguments.
	ToolArgs
	// ToolEnd completes the call: its arguments, which the parts spell, and its raw text are known.
	ToolEnd
)

// Event is one piece of a choice's output.
type Event struct {
	Kind Kind
	// Text of Reasoning and Content, or the fragment of ToolArgs. Whole characters; valid until the next Push or Finish.
	Text []byte
	// Entries of the content tokens whose text ends in Text. Text may be empty when a token's rest turned out to
	// be markup.
	Entries []Entry
	// Call of the tool events, nil for the others.
	Call *toolcall.Call

	from, to int // of Text in Emitter.out, while events are collected
	end      int // Content: offset after Text in the content before tools and stops were taken out
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

	start, end int // offsets in the content before tools and stops were taken out
	open       bool
	hidden     bool // without text of its own, inside markup
}

// span is a half-open range of offsets.
type span struct{ from, to int }

// add appends text to the last event when it is of the same kind and call, else it begins a new one.
func (e *Emitter) add(kind Kind, call *toolcall.Call, b []byte) {
	e.begin()
	from := len(e.out)
	e.out = append(e.out, b...)
	if n := len(e.events); n > 0 && e.events[n-1].Kind == kind && e.events[n-1].Call == call &&
		kind != ToolStart && kind != ToolEnd {
		e.events[n-1].to = len(e.out)
		return
	}
	e.events = append(e.events, Event{Kind: kind, Call: call, from: from, to: len(e.out)})
}

// show makes content visible that ends at offset end.
func (e *Emitter) show(b []byte, end int) {
	if len(b) == 0 {
		return
	}
	e.add(Content, nil, b)
	e.events[len(e.events)-1].end = end
	if e.cfg.Logprobs {
		s := span{end - len(b), end}
		if n := len(e.seen); n > 0 && e.seen[n-1].to == s.from {
			e.seen[n-1].to = s.to
		} else {
			e.seen = append(e.seen, s)
		}
	}
}

// Take returns what became visible since the last call. The slice is valid until the next Push or Finish.
func (e *Emitter) Take() []Event {
	e.begin()
	if e.cfg.Logprobs {
		e.attach()
	}
	for i := range e.events {
		ev := &e.events[i]
		ev.Text = e.out[ev.from:ev.to]
	}
	e.taken = true
	return e.events
}

// begin empties the events after they were handed out.
func (e *Emitter) begin() {
	if e.taken {
		clear(e.events)
		e.events, e.out, e.taken = e.events[:0], e.out[:0], false
	}
}

// attach gives each event the entries of the tokens whose text it ends. Tokens of which no byte was visible
// are dropped.
func (e *Emitter) attach() {
	decided := e.decided()
	n, at := 0, -1
	for ; n < len(e.entries); n++ {
		t := &e.entries[n]
		// A token without text belongs to what follows it, which may be a stop string.
		if t.open || t.end > decided || t.start == decided || e.lead != leadDone {
			break
		}
		if !e.visible(t) {
			continue
		}
		if to := e.eventOf(t, max(at, 0)); to >= 0 {
			at = to
		} else if at < 0 {
			e.events = append([]Event{{Kind: Content}}, e.events...)
			at = 0
		}
		e.events[at].Entries = append(e.events[at].Entries, *t)
	}
	e.entries = e.entries[:copy(e.entries, e.entries[n:])]
	keep := e.fed
	if len(e.entries) > 0 {
		keep = e.entries[0].start
	}
	for len(e.seen) > 1 && e.seen[0].to <= keep {
		e.seen = e.seen[1:]
	}
}

// visible reports whether any byte of a token is content, or for a token without bytes whether it lies in content.
func (e *Emitter) visible(t *Entry) bool {
	if t.start == t.end {
		return !t.hidden && (e.stopped == 0 || t.start < e.cut)
	}
	for _, s := range e.seen {
		if s.from < t.end && t.start < s.to {
			return true
		}
	}
	return false
}

// eventOf finds the content event, from index first on, in which a token's text ends, -1 when it is in none of them.
func (e *Emitter) eventOf(t *Entry, first int) int {
	last := -1
	for i := first; i < len(e.events); i++ {
		if ev := &e.events[i]; ev.Kind == Content {
			if ev.end >= t.end {
				return i
			}
			if ev.end > t.start {
				last = i
			}
		}
	}
	return last
}
