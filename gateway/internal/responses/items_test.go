package responses

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// TestSettled: items are kept with an id, a type, a status and content in parts; what they have of it stays.
func TestSettled(t *testing.T) {
	find := func(id string) (json.RawMessage, bool) {
		return json.RawMessage(`{"id":"rs_1","type":"reasoning"}`), id == "rs_1"
	}
	for _, tt := range []struct{ in, want string }{
		{`"hi"`, `{"content":[{"text":"hi","type":"input_text"}],"id":"msg_*","role":"user","status":"completed","type":"message"}`},
		{`{"role":"developer","content":"a\nb"}`,
			`{"content":[{"text":"a\nb","type":"input_text"}],"id":"msg_*","role":"developer","status":"completed","type":"message"}`},
		{`{"role":"assistant","content":"a","id":null}`,
			`{"content":[{"annotations":[],"logprobs":[],"text":"a","type":"output_text"}],"id":"msg_*","role":"assistant","status":"completed","type":"message"}`},
		{`{"id":"msg_7","type":"message","role":"user","status":"incomplete","content":[{"type":"input_image"}],"x":[1]}`,
			`{"content":[{"type":"input_image"}],"id":"msg_7","role":"user","status":"incomplete","type":"message","x":[1]}`},
		{`{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}`,
			`{"arguments":"{}","call_id":"c","id":"fc_*","name":"f","status":"completed","type":"function_call"}`},
		{`{"type":"function_call_output","call_id":"c","output":"1"}`,
			`{"call_id":"c","id":"fco_*","output":"1","status":"completed","type":"function_call_output"}`},
		{`{"type":"reasoning","summary":[]}`, `{"id":"rs_*","summary":[],"type":"reasoning"}`},
		{`{"type":"item_reference","id":"rs_1"}`, `{"id":"rs_1","type":"reasoning"}`},
		{`{"id":"rs_1"}`, `{"id":"rs_1","type":"reasoning"}`},
		{`{"type":"item_reference","id":"rs_2"}`, `{"type":"item_reference","id":"rs_2"}`},
		{`{"type":"new_kind"}`, `{"id":"item_*","type":"new_kind"}`},
		{`7`, `7`},
	} {
		out := settled(json.RawMessage(tt.in), find, turn.NewID)
		var got, want any
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%s: %s: %v", tt.in, out, err)
		}
		if err := json.Unmarshal([]byte(tt.want), &want); err != nil {
			t.Fatal(err)
		}
		if m, ok := want.(map[string]any); ok {
			if prefix, made := strings.CutSuffix(m["id"].(string), "*"); made {
				id, _ := got.(map[string]any)["id"].(string)
				if !strings.HasPrefix(id, prefix) || len(id) != len(prefix)+24 {
					t.Errorf("%s: id %q", tt.in, id)
				}
				m["id"] = id
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", tt.in, d)
		}
	}
}

func TestPages(t *testing.T) {
	items := make([]json.RawMessage, 25)
	for i := range items {
		items[i] = json.RawMessage(`{"id":"` + string(rune('a'+i)) + `"}`)
	}
	for _, tt := range []struct {
		query, ids string
		more       bool
		param      string
	}{
		{"", "yxwvutsrqponmlkjihgf", true, ""},
		{"limit=100", "yxwvutsrqponmlkjihgfedcba", false, ""},
		{"order=asc&limit=3", "abc", true, ""},
		{"order=asc&limit=3&after=c", "def", true, ""},
		{"order=asc&after=w&limit=2", "xy", false, ""},
		{"order=asc&after=y", "", false, ""},
		{"order=desc&limit=2&after=c", "ba", false, ""},
		{"order=asc&limit=3&before=f", "cde", true, ""},
		{"order=asc&limit=3&before=d", "abc", false, ""},
		{"order=asc&limit=2&after=b&before=f", "cd", true, ""},
		{"order=asc&after=f&before=b", "", false, ""},
		{"include[]=reasoning.encrypted_content&limit=1", "y", true, ""},
		{"limit=0", "", false, "limit"},
		{"limit=101", "", false, "limit"},
		{"limit=x", "", false, "limit"},
		{"order=up", "", false, "order"},
		{"after=1", "", false, "after"},
		{"before=1", "", false, "before"},
	} {
		p, err := newPage(items, httptest.NewRequest("GET", "/?"+tt.query, nil))
		if tt.param != "" {
			if err == nil || !strings.Contains(err.Error(), tt.param) {
				t.Errorf("%s: error %v, want one about %s", tt.query, err, tt.param)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.query, err)
			continue
		}
		ids := ""
		for _, it := range p.Data {
			ids += idOf(it)
		}
		if ids != tt.ids || p.HasMore != tt.more {
			t.Errorf("%s: %q, more %v; want %q, %v", tt.query, ids, p.HasMore, tt.ids, tt.more)
		}
		if n := len(ids); n > 0 && (*p.FirstID != ids[:1] || *p.LastID != ids[n-1:]) ||
			n == 0 && (p.FirstID != nil || p.LastID != nil || p.Data == nil) {
			t.Errorf("%s: first %v, last %v, data %v", tt.query, p.FirstID, p.LastID, p.Data)
		}
	}
	if idOf(items[0]) != "a" {
		t.Error("the items were changed")
	}
}
