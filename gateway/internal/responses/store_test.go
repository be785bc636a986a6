package responses

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func testEntry(scope, id string, bytes int) *entry {
	item := json.RawMessage(`"` + id + `"`)
	return newEntry(key{scope, id}, []byte(strings.Repeat("x", bytes)), []json.RawMessage{item}, 0,
		map[string]json.RawMessage{"rs_" + id: item}, &eventLog{})
}

func TestStoreEvictsTheLeastRecentlyUsed(t *testing.T) {
	s := newStore(1000)
	for _, id := range []string{"a", "b", "c"} {
		s.put(testEntry("", id, 300))
	}
	if _, ok := s.get(key{"", "a"}); !ok {
		t.Fatal("a is gone before the store is full")
	}
	s.put(testEntry("", "d", 300))
	for id, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
		if _, ok := s.get(key{"", id}); ok != want {
			t.Errorf("%s is kept: %v, want %v", id, ok, want)
		}
		if _, ok := s.item(key{"", "rs_" + id}); ok != want {
			t.Errorf("item of %s is kept: %v, want %v", id, ok, want)
		}
	}
	s.put(testEntry("", "huge", 2000))
	if _, ok := s.get(key{"", "huge"}); ok {
		t.Error("a response larger than the store was kept")
	}
	if _, ok := s.get(key{"", "a"}); !ok {
		t.Error("a response that cannot be kept drove others out")
	}
}

func TestStoreCountsEntries(t *testing.T) {
	s := newStore(1 << 30)
	for i := range maxEntries + 5 {
		s.put(testEntry("", fmt.Sprint(i), 1))
	}
	if len(s.byID) != maxEntries || s.lru.Len() != maxEntries || len(s.items) != maxEntries {
		t.Errorf("%d entries, %d in order, %d items; want %d", len(s.byID), s.lru.Len(), len(s.items), maxEntries)
	}
	if _, ok := s.get(key{"", "4"}); ok {
		t.Error("the oldest entries stayed")
	}
}

func TestStoreKeepsScopesApart(t *testing.T) {
	s := newStore(1000)
	s.put(testEntry("alice", "a", 10))
	if _, ok := s.get(key{"bob", "a"}); ok {
		t.Error("read with another key")
	}
	if _, ok := s.item(key{"bob", "rs_a"}); ok {
		t.Error("item read with another key")
	}
	if s.delete(key{"bob", "a"}) {
		t.Error("deleted with another key")
	}
	if !s.delete(key{"alice", "a"}) || s.delete(key{"alice", "a"}) {
		t.Error("delete works other than once")
	}
	if s.bytes != 0 || len(s.items) != 0 {
		t.Errorf("%d bytes and %d items are left behind", s.bytes, len(s.items))
	}
}
