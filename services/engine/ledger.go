package engine

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-inference/tandem/services/rpcerr"
)

type handle interface{ Sequence | Snapshot }

// ledger records to whom the handles of an engine belong. Engines give a freed handle out again, so entries are told
// apart by identity, not by handle.
type ledger[H handle] struct {
	noun string // what errors call a handle
	free func(context.Context, H) error

	// gate is held for reading by calls that make a handle. With it held for writing, nobody is about to learn a handle,
	// so what has no entry belongs to nobody. Taken before mu.
	gate sync.RWMutex

	mu      sync.Mutex // guards the fields below
	entries map[H]*entry
	strays  map[H]time.Time // handles without an entry, since when
}

// entry is one handle that is known.
type entry struct {
	// owner is the context of the request that holds it, nil when nobody does and it is to be freed.
	owner   context.Context
	ended   time.Time // when the owner's end was noticed
	tries   int       // of freeing it, failed ones
	freeing bool      // a call is under way
}

func newLedger[H handle](noun string, free func(context.Context, H) error) ledger[H] {
	return ledger[H]{noun: noun, free: free, entries: map[H]*entry{}, strays: map[H]time.Time{}}
}

// add records a handle of owner; nil: it is to be freed. What was known of the handle is over: the engine gave it out
// again.
func (l *ledger[H]) add(h H, owner context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[h] = &entry{owner: owner}
	delete(l.strays, h)
}

// claim lets one caller free a handle. Nil: it is not known, another caller frees it already, or it belongs to another
// request by now than to that of ctx, which has ended.
func (l *ledger[H]) claim(ctx context.Context, h H) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[h]
	if e == nil || e.freeing || e.owner != ctx && ctx.Err() != nil {
		return nil
	}
	e.freeing = true
	return e
}

// freed notes how freeing a claimed handle ended and returns the tries that failed. A handle that the engine does not
// know is freed: an earlier try may have come through without its answer.
func (l *ledger[H]) freed(h H, e *entry, err error) (tries int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil || rpcerr.Code(err) == codes.NotFound {
		if l.entries[h] == e {
			delete(l.entries, h)
		}
		return 0
	}
	e.owner, e.freeing = nil, false
	e.tries++
	return e.tries
}

// owing lists handles that are to be freed and that no call frees now.
func (l *ledger[H]) owing() []H {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []H
	for h, e := range l.entries {
		if e.owner == nil && !e.freeing {
			list = append(list, h)
		}
	}
	slices.Sort(list)
	return list
}

// abandon marks handles to be freed whose owner ended at least grace ago, and returns them.
func (l *ledger[H]) abandon(now time.Time, grace time.Duration) []H {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []H
	for h, e := range l.entries {
		switch {
		case e.owner == nil || e.freeing || e.owner.Err() == nil:
			e.ended = time.Time{}
		case e.ended.IsZero():
			e.ended = now
		case now.Sub(e.ended) >= grace:
			e.owner = nil
			list = append(list, h)
		}
	}
	slices.Sort(list)
	return list
}

// known returns the handles that have an entry.
func (l *ledger[H]) known() map[H]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[H]bool, len(l.entries))
	for h := range l.entries {
		out[h] = true
	}
	return out
}

// stray takes note of handles in the engine that are not known. It returns how many were not known at the comparison
// before either, and whether one has been so for grace. known was read before the list: what was freed in between is in
// both. A handle that is being made has no entry either, but only for the rest of a call.
func (l *ledger[H]) stray(list []H, known map[H]bool, now time.Time, grace time.Duration) (again int, lasting bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.strays, func(h H, _ time.Time) bool { return !slices.Contains(list, h) })
	for _, h := range list {
		if known[h] || l.entries[h] != nil {
			continue
		}
		since, seen := l.strays[h]
		if !seen {
			l.strays[h] = now
		} else {
			again++
		}
		lasting = lasting || seen && now.Sub(since) >= grace
	}
	return again, lasting
}
