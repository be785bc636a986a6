package toolcall

import (
	"container/list"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
)

// Limits of a Memory (docs/spec/http-api.md §6.6).
const (
	MaxMemoryCalls = 50_000
	MaxMemoryBytes = 64 << 20
)

// Memory keeps the calls that models wrote, so that a history that comes back in structured form can be rendered as it
// was written: the new prompt then begins with the tokens that the model has seen. The least recently used call goes
// first. It is safe for concurrent use.
type Memory struct {
	maxCalls, maxBytes int

	mu    sync.Mutex // guards the following
	order *list.List // of *Written, most recent first
	byID  map[string]*list.Element
	bytes int
	// share is told of every call that is put in; nil = nobody is.
	share func(Remembered)
}

// Remembered is a call with all that is needed to know it elsewhere.
type Remembered struct {
	Scope     string `json:"scope,omitempty"`
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Gap       string `json:"gap,omitempty"`
	Raw       string `json:"raw"`
	Reasoning string `json:"reasoning,omitempty"`
}

// Key names the call within its scope: letters and digits.
func (r *Remembered) Key() string { return memoryKey(r.ID) }

// Share has f told of every call that is put in from now on. It must not block.
func (m *Memory) Share(f func(Remembered)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.share = f
}

// Learn takes a call that was put in elsewhere.
func (m *Memory) Learn(r Remembered) {
	m.put(r.Scope, &Call{ID: r.ID, Name: r.Name, Arguments: r.Arguments, Gap: r.Gap, Raw: r.Raw}, r.Reasoning)
}

// Written is a call as the model wrote it.
type Written struct {
	// Gap is the whitespace between what came before and the call, Raw the call itself.
	Gap, Raw string
	// Reasoning of the turn up to the call.
	Reasoning string

	key, name string
	arguments any
	size      int
}

// NewMemory returns an empty memory with the limits of the specification.
func NewMemory() *Memory {
	return &Memory{maxCalls: MaxMemoryCalls, maxBytes: MaxMemoryBytes, order: list.New(), byID: map[string]*list.Element{}}
}

// memoryKey reduces an id to letters and digits: clients are known to drop the rest.
func memoryKey(id string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return -1
	}, id)
}

// Put remembers a complete call for the holders of one API key, whom scope names.
func (m *Memory) Put(scope string, c *Call, reasoning string) {
	m.put(scope, c, reasoning)
	m.mu.Lock()
	share := m.share
	m.mu.Unlock()
	if share != nil && memoryKey(c.ID) != "" {
		share(Remembered{Scope: scope, ID: c.ID, Name: c.Name, Arguments: c.Arguments, Gap: c.Gap, Raw: c.Raw,
			Reasoning: reasoning})
	}
}

func (m *Memory) put(scope string, c *Call, reasoning string) {
	w := &Written{Gap: c.Gap, Raw: c.Raw, Reasoning: reasoning, key: memoryKey(c.ID), name: c.Name}
	if w.key == "" {
		return
	}
	w.key = scoped(scope, w.key)
	if json.Unmarshal([]byte(c.Arguments), &w.arguments) != nil {
		return
	}
	// The arguments are about as long as what they were written as.
	w.size = 2*len(w.Raw) + len(w.Gap) + len(w.Reasoning) + 256
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.byID[w.key]; old != nil {
		m.drop(old)
	}
	m.byID[w.key] = m.order.PushFront(w)
	m.bytes += w.size
	for m.order.Len() > m.maxCalls || m.bytes > m.maxBytes {
		m.drop(m.order.Back())
	}
}

// scoped is the key of a call's id in a scope; ids are letters and digits, so no two pairs share one.
func scoped(scope, id string) string { return id + " " + scope }

func (m *Memory) drop(e *list.Element) {
	w := m.order.Remove(e).(*Written)
	delete(m.byID, w.key)
	m.bytes -= w.size
}

// Get finds the call of an id in a scope, if name and arguments (JSON) still mean the same; nil = not known.
func (m *Memory) Get(scope, id, name, arguments string) *Written {
	m.mu.Lock()
	e := m.byID[scoped(scope, memoryKey(id))]
	if e == nil {
		m.mu.Unlock()
		return nil
	}
	m.order.MoveToFront(e)
	m.mu.Unlock()
	w := e.Value.(*Written) // never changed once it is in
	var args any
	if w.name != name || json.Unmarshal([]byte(arguments), &args) != nil || !reflect.DeepEqual(args, w.arguments) {
		return nil
	}
	return w
}

// Stats gives the number of calls and the bytes that they take.
func (m *Memory) Stats() (calls, bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.order.Len(), m.bytes
}
