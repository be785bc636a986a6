package responses

import (
	"container/list"
	"encoding/json"
	"sync"
)

// maxEntries bounds the number of kept responses.
const maxEntries = 1000

// key names a response or an item. Scope keeps the clients of different API keys apart.
type key struct{ scope, id string }

// entry is a kept response. It is immutable.
type entry struct {
	key
	// body is the response as GET answers it.
	body []byte
	// items are what a later request continues: all input items, which are the first inputs ones, and the output.
	items  []json.RawMessage
	inputs int
	// log holds the events.
	log *eventLog
	// outputs are the items of the output by their ids.
	outputs map[string]json.RawMessage
	size    int
}

func newEntry(k key, body []byte, items []json.RawMessage, inputs int,
	outputs map[string]json.RawMessage, log *eventLog) *entry {
	e := &entry{key: k, body: body, items: items, inputs: inputs, outputs: outputs, log: log, size: len(body) + log.size()}
	for _, it := range items {
		e.size += len(it)
	}
	return e
}

// store keeps finished responses in memory, the least recently used ones give way.
type store struct {
	maxBytes int

	mu    sync.Mutex // guards the following
	bytes int
	lru   *list.List // of *entry, newest first
	byID  map[key]*list.Element
	items map[key]json.RawMessage
}

func newStore(maxBytes int) *store {
	return &store{maxBytes: maxBytes, lru: list.New(), byID: map[key]*list.Element{}, items: map[key]json.RawMessage{}}
}

// put keeps a response; one that is larger than the whole store is not kept.
func (s *store) put(e *entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.size > s.maxBytes {
		return
	}
	for s.bytes+e.size > s.maxBytes || s.lru.Len() >= maxEntries {
		s.remove(s.lru.Back())
	}
	s.byID[e.key] = s.lru.PushFront(e)
	s.bytes += e.size
	for id, raw := range e.outputs {
		s.items[key{e.scope, id}] = raw
	}
}

// get finds a response and counts as its use.
func (s *store) get(k key) (*entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	el := s.byID[k]
	if el == nil {
		return nil, false
	}
	s.lru.MoveToFront(el)
	return el.Value.(*entry), true
}

// item finds an output item of any kept response.
func (s *store) item(k key) (json.RawMessage, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, ok := s.items[k]
	return raw, ok
}

// delete reports whether there was such a response.
func (s *store) delete(k key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	el := s.byID[k]
	if el == nil {
		return false
	}
	s.remove(el)
	return true
}

func (s *store) remove(el *list.Element) {
	e := s.lru.Remove(el).(*entry)
	delete(s.byID, e.key)
	s.bytes -= e.size
	for id := range e.outputs {
		delete(s.items, key{e.scope, id})
	}
}
