package responses

import (
	"bytes"
	"compress/flate"
	"io"
	"sync"
)

// logBlock is how many bytes of events are packed together. Packed events take about a tenth of their size: ids and
// names repeat.
const logBlock = 32 << 10

// eventLog keeps the events of one response as they were sent, numbered from 0, for clients that read them again or
// later. It is safe for concurrent use; one writer appends.
type eventLog struct {
	mu     sync.Mutex // guards the following
	blocks []packed
	tail   []byte // events after the blocks
	first  int    // number of the first event in tail
	next   int    // number of the next event
	ended  bool
	grown  chan struct{} // closed when there is more; nil while nobody waits
}

// packed are compressed events.
type packed struct {
	data []byte
	next int // number of the first event after them
}

var packers = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.BestSpeed)
	if err != nil {
		panic(err) // the level is a constant
	}
	return w
}}

// add appends whole events; next is the number of the one after them.
func (l *eventLog) add(events []byte, next int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tail, l.next = append(l.tail, events...), next
	if len(l.tail) >= logBlock {
		l.pack()
	}
	l.wake()
}

// end says that no event comes after those that there are.
func (l *eventLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pack()
	l.ended = true
	l.wake()
}

func (l *eventLog) pack() {
	if len(l.tail) == 0 {
		return
	}
	var out bytes.Buffer
	w := packers.Get().(*flate.Writer)
	defer packers.Put(w)
	w.Reset(&out)
	_, err := w.Write(l.tail)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err) // memory takes everything
	}
	l.blocks = append(l.blocks, packed{bytes.Clone(out.Bytes()), l.next})
	l.tail, l.first = nil, l.next
}

func (l *eventLog) wake() {
	if l.grown != nil {
		close(l.grown)
		l.grown = nil
	}
}

// size in memory.
func (l *eventLog) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.tail)
	for _, b := range l.blocks {
		n += len(b.data)
	}
	return n
}

// all returns the events and their number.
func (l *eventLog) all() (events []byte, next int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.blocks {
		events = append(events, b.unpack()...)
	}
	return append(events, l.tail...), l.next
}

// from returns events from number n on, not always all of them, and the number after them. When there are none yet,
// more is closed once there are; when none will come, more is nil.
func (l *eventLog) from(n int) (events []byte, next int, more <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := 0
	for _, b := range l.blocks {
		if n < b.next {
			return skipEvents(b.unpack(), n-first), b.next, nil
		}
		first = b.next
	}
	if n < l.next {
		return bytes.Clone(skipEvents(l.tail, n-l.first)), l.next, nil
	}
	if l.ended {
		return nil, n, nil
	}
	if l.grown == nil {
		l.grown = make(chan struct{})
	}
	return nil, n, l.grown
}

func (b packed) unpack() []byte {
	events, err := io.ReadAll(flate.NewReader(bytes.NewReader(b.data)))
	if err != nil {
		panic(err) // pack made it
	}
	return events
}

// skipEvents leaves out the first n events. Their data has no raw line breaks, so a blank line is always an end.
func skipEvents(events []byte, n int) []byte {
	for range n {
		_, events, _ = bytes.Cut(events, []byte("\n\n"))
	}
	return events
}
