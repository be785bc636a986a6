package toolcall

import (
	"fmt"
	"testing"
)

func TestMemory(t *testing.T) {
	m := NewMemory()
	put := func(id, args, raw string) {
		m.Put("key", &Call{ID: id, Name: "f", Arguments: args, Raw: raw, Gap: "\n"}, "because")
	}
	put("call_2b", `{"a": 1, "b": [1.0, "x"]}`, "<raw>")
	for _, tt := range []struct {
		name, id, tool, args string
		hit                  bool
	}{
		{"same", "call_2b", "f", `{"a":1,"b":[1,"x"]}`, true},
		{"keys in another order", "call_2b", "f", `{"b":[1,"x"],"a":1}`, true},
		{"id without its underscore", "call2b", "f", `{"a":1,"b":[1,"x"]}`, true},
		{"other id", "call_3b", "f", `{"a":1,"b":[1,"x"]}`, false},
		{"other name", "call_2b", "g", `{"a":1,"b":[1,"x"]}`, false},
		{"other arguments", "call_2b", "f", `{"a":2,"b":[1,"x"]}`, false},
		{"order of a list", "call_2b", "f", `{"a":1,"b":["x",1]}`, false},
		{"no JSON", "call_2b", "f", `{`, false},
		{"no id", "", "f", `{}`, false},
	} {
		w := m.Get("key", tt.id, tt.tool, tt.args)
		if (w != nil) != tt.hit || w != nil && (w.Raw != "<raw>" || w.Gap != "\n" || w.Reasoning != "because") {
			t.Errorf("%s: %+v, want a hit: %v", tt.name, w, tt.hit)
		}
	}
}

func TestMemoryForgets(t *testing.T) {
	m := NewMemory()
	m.maxCalls = 3
	for i := range 4 {
		m.Put("key", &Call{ID: fmt.Sprint("c", i), Name: "f", Arguments: "{}", Raw: "r"}, "")
		m.Get("key", "c0", "f", "{}")
	}
	for i, want := range []bool{true, false, true, true} {
		if got := m.Get("key", fmt.Sprint("c", i), "f", "{}") != nil; got != want {
			t.Errorf("call %d is known: %v, want %v", i, got, want)
		}
	}
	m.Put("key", &Call{ID: "c0", Name: "f", Arguments: "{}", Raw: "again"}, "")
	if n, bytes := m.Stats(); n != 3 || bytes <= 0 {
		t.Errorf("%d calls, %d bytes", n, bytes)
	}
	m.maxBytes = 300
	m.Put("key", &Call{ID: "c9", Name: "f", Arguments: "{}", Raw: "r"}, "")
	if n, bytes := m.Stats(); n != 1 || bytes > 300 || m.Get("key", "c9", "f", "{}") == nil {
		t.Errorf("%d calls, %d bytes after the limit shrank", n, bytes)
	}
}

// TestMemoryIsScoped: what the model wrote for the holder of one key is no other's, though the id is known to both.
func TestMemoryIsScoped(t *testing.T) {
	m := NewMemory()
	m.Put("alice", &Call{ID: "c1", Name: "f", Arguments: "{}", Raw: "hers"}, "")
	m.Put("bob", &Call{ID: "c1", Name: "f", Arguments: "{}", Raw: "his"}, "")
	for scope, want := range map[string]string{"alice": "hers", "bob": "his"} {
		if w := m.Get(scope, "c1", "f", "{}"); w == nil || w.Raw != want {
			t.Errorf("%s: %+v, want %s", scope, w, want)
		}
	}
	for _, scope := range []string{"", "carol", "1 alice"} {
		if w := m.Get(scope, "c1", "f", "{}"); w != nil {
			t.Errorf("%q: %+v", scope, w)
		}
	}
}
