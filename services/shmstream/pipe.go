package shmstream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
)

// words are the shared counters of one pipe; each has a cache line of its own.
type words struct {
	head atomic.Uint64 // bytes written
	_    [56]byte
	tail atomic.Uint64 // bytes read
	_    [56]byte
	// A sleeper counts itself in and waits for bytes or for room; whoever changes what it
	// waits for changes the word and wakes.
	bytes bell
	room  bell
	ended atomic.Uint32 // the writer will write no more
	_     [60]byte
}

// bell is a word to sleep on.
type bell struct {
	word     uint32
	sleepers atomic.Int32
	_        [56]byte
}

func (b *bell) ring() {
	if b.sleepers.Load() > 0 {
		atomic.AddUint32(&b.word, 1)
		wake(&b.word)
	}
}

const (
	prefixBytes = 4 // length of a message
	// rewound is a length that no message has: the next message is at the beginning of the ring. A writer that finds the
	// ring empty, and room enough before what was read last, goes back there, so that messages lie in one piece and in
	// memory that was used just now.
	rewound = 1<<32 - 1
)

// oversleep bounds a sleep, should a peer die between its change and its ring. Tests change it.
var oversleep = time.Second

// spin is how long a reader polls before it sleeps, where there are processors to spare: the answer is often near, and
// a processor that sleeps takes its time to wake.
var spin = func() time.Duration {
	if runtime.NumCPU() > 4 {
		return 20 * time.Microsecond
	}
	return 0
}()

var (
	errClosed  = errors.New("stream is closed")
	errEnded   = errors.New("the stream has ended")
	errCorrupt = errors.New("counters of the shared memory are out of bounds")
)

// pipe is one direction of a stream: a ring of bytes with one writer and one reader.
type pipe struct {
	*words
	data []byte
	side *side
}

// side is what both pipes of this end of the stream share.
type side struct {
	closed atomic.Bool // all calls are to return
	over   atomic.Bool // the peer is done: what is in the ring is all there will be, and nobody reads any more
}

// write appends the pieces of a message whose bytes are total in all.
func (l *pipe) write(pieces [][]byte, total int) error {
	if l.side.over.Load() {
		return errEnded
	}
	var prefix [prefixBytes]byte
	head, size := l.head.Load(), uint64(len(l.data))
	if at := head % size; at >= uint64(prefixBytes+total) && size-at >= prefixBytes && l.tail.Load() == head {
		binary.LittleEndian.PutUint32(l.data[at:], rewound)
		head += size - at
	}
	binary.LittleEndian.PutUint32(prefix[:], uint32(total))
	if err := l.put(&head, prefix[:]); err != nil {
		return err
	}
	for _, p := range pieces {
		if err := l.put(&head, p); err != nil {
			return err
		}
	}
	l.publish(head)
	return nil
}

func (l *pipe) publish(head uint64) {
	l.head.Store(head)
	l.bytes.ring()
}

// put copies p into the ring; what is in it becomes visible when the ring is full, else with publish.
func (l *pipe) put(head *uint64, p []byte) error {
	size := uint64(len(l.data))
	for len(p) > 0 {
		used := *head - l.tail.Load()
		if used > size {
			return errCorrupt
		}
		if used == size {
			l.publish(*head)
			if err := l.sleep(&l.room, 0, func() bool { return *head-l.tail.Load() != size }); err != nil {
				return err
			}
			continue
		}
		at := *head % size
		n := copy(l.data[at:min(size, at+size-used)], p)
		p = p[n:]
		*head += uint64(n)
	}
	return nil
}

// read waits for the next message and gives it to take, in memory that stays as it is until take returns: the ring's,
// where a message may lie in two pieces, when the whole message is there at once, else buf or a larger slice, which is
// returned.
func (l *pipe) read(buf []byte, limit int, take func(first, rest []byte) error) ([]byte, error) {
	size := uint64(len(l.data))
	var prefix [prefixBytes]byte
	tail := l.tail.Load()
	if err := l.get(&tail, prefix[:]); err != nil {
		return buf, err
	}
	if binary.LittleEndian.Uint32(prefix[:]) == rewound {
		tail += size - (tail-prefixBytes)%size - prefixBytes
		if err := l.get(&tail, prefix[:]); err != nil {
			return buf, err
		}
	}
	length := binary.LittleEndian.Uint32(prefix[:])
	if int64(length) > int64(limit) {
		return buf, fmt.Errorf("%w: a message of %d bytes, at most %d are received", errCorrupt, length, limit)
	}
	n := uint64(length)
	if there := l.head.Load() - tail; there > size {
		return buf, errCorrupt
	} else if there >= n {
		at := tail % size
		first := min(n, size-at)
		err := take(l.data[at:at+first], l.data[:n-first])
		l.release(tail + n)
		return buf, err
	}
	if uint64(cap(buf)) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if err := l.get(&tail, buf); err != nil {
		return buf, err
	}
	l.release(tail)
	return buf, take(buf, nil)
}

func (l *pipe) release(tail uint64) {
	l.tail.Store(tail)
	l.room.ring()
}

// get copies from the ring to p; what was read becomes room when the ring is empty, else with release.
func (l *pipe) get(tail *uint64, p []byte) error {
	size := uint64(len(l.data))
	for len(p) > 0 {
		there := l.head.Load() - *tail
		if there > size {
			return errCorrupt
		}
		if there == 0 {
			l.release(*tail)
			if err := l.sleep(&l.bytes, spin, func() bool { return l.head.Load() != *tail }); err != nil {
				return err
			}
			continue
		}
		at := *tail % size
		n := copy(p, l.data[at:min(size, at+there)])
		p = p[n:]
		*tail += uint64(n)
	}
	return nil
}

// sleep waits until ready, looking for a while before it sleeps.
func (l *pipe) sleep(b *bell, look time.Duration, ready func() bool) error {
	if look > 0 {
		for start := time.Now(); time.Since(start) < look; {
			if ready() {
				return nil
			}
		}
	}
	b.sleepers.Add(1)
	defer b.sleepers.Add(-1)
	for {
		word := atomic.LoadUint32(&b.word)
		switch {
		case ready(): // what came before the end counts
			return nil
		case l.side.closed.Load():
			return errClosed
		case l.side.over.Load() || l.ended.Load() != 0:
			return errEnded
		}
		wait(&b.word, word, oversleep)
	}
}

// end says that nothing more will be written.
func (l *pipe) end() {
	l.ended.Store(1)
	l.rouse()
}

// rouse makes all who sleep look again, on either side.
func (l *pipe) rouse() {
	for _, b := range []*bell{&l.bytes, &l.room} {
		atomic.AddUint32(&b.word, 1)
		wake(&b.word)
	}
}
