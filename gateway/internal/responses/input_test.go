package responses

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/seal"
)

// readItems reads an array of items after instructions.
func readItems(t *testing.T, items string) ([]chat.Message, *reader) {
	t.Helper()
	o, err := reqjson.Parse([]byte(`{"input":` + items + `}`))
	if err != nil {
		t.Fatal(err)
	}
	list, err := parseItems(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{sealed: seal.New(seal.NewKey(), "test"), find: func(id string) (json.RawMessage, bool) {
		return json.RawMessage(`{"type":"reasoning","summary":[{"type":"summary_text","text":"kept"}]}`), id == "rs_kept"
	}}
	r.push(chat.Message{Role: chat.RoleSystem, Content: "I."})
	for i, raw := range list {
		if err := r.add(raw, reqjson.Index("input", i)); err != nil {
			t.Fatal(err)
		}
	}
	return r.messages(), r
}

func TestInputItems(t *testing.T) {
	system := chat.Message{Role: chat.RoleSystem, Content: "I."}
	user := chat.Message{Role: chat.RoleUser, Content: "u"}
	for name, tt := range map[string]struct {
		items   string
		want    []chat.Message
		skipped []string
	}{
		"string":       {`"u"`, []chat.Message{system, user}, nil},
		"without type": {`[{"role":"user","content":"u"}]`, []chat.Message{system, user}, nil},
		"bare string":  {`["u"]`, []chat.Message{system, user}, nil},
		"parts":        {`[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"refusal","refusal":"b"},{"text":"c"}]}]`, []chat.Message{system, {Role: "user", Content: "abc"}}, nil},
		"developer": {`[{"role":"developer","content":"d"}]`, []chat.Message{system, {Role: "system", Content: "d"}},
			nil},
		"unknown items": {`[{"type":"web_search_call"},{"role":"user","content":"u"},{"type":"compaction"}]`,
			[]chat.Message{system, user}, []string{"web_search_call", "compaction"}},
		"one turn of many items": {`[{"role":"user","content":"u"},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"r1"}]},{"role":"assistant","content":"a"},
			{"type":"reasoning","summary":[{"type":"summary_text","text":"r2"}]},{"type":"function_call","call_id":"c","name":"f","namespace":"n","arguments":"{}"}]`,
			[]chat.Message{system, user,
				{Role: "assistant", Content: "a", Reasoning: "r1\n\nr2", HasReasoning: true,
					ToolCalls: []chat.ToolCall{{ID: "c", Name: "n.f", Arguments: chattemplate.NewDict()}}}}, nil},
		"references": {`[{"role":"user","content":"u"},{"id":"rs_kept"},{"type":"item_reference","id":"rs_lost"}]`,
			[]chat.Message{system, user, {Role: "assistant", Reasoning: "kept", HasReasoning: true}},
			[]string{"item_reference"}},
		"reasoning that says nothing": {`[{"type":"reasoning","summary":[],"content":null,"encrypted_content":"of another gateway"},{"role":"user","content":"u"}]`, []chat.Message{system, user}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, r := readItems(t, tt.items)
			equal := cmp.Comparer(func(a, b *chattemplate.Dict) bool {
				x, _ := chattemplate.ToJSON(a)
				y, _ := chattemplate.ToJSON(b)
				return x == y
			})
			if d := cmp.Diff(tt.want, got, equal); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(tt.skipped, r.skipped); d != "" {
				t.Errorf("skipped: %s", d)
			}
		})
	}
}

// TestManyPartsOfATurn: the texts of a turn are copied once, not once for each text after them.
func TestManyPartsOfATurn(t *testing.T) {
	const parts = 2000
	text := strings.Repeat("x", 1000)
	item := json.RawMessage(`{"role":"assistant","content":"` + text +
		`"},{"type":"reasoning","content":[{"text":"` + text + `"}]},`)
	items := `[` + strings.TrimSuffix(strings.Repeat(string(item), parts), ",") + `]`
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, _ := readItems(t, items)
	runtime.ReadMemStats(&after)
	if m := got[len(got)-1]; len(got) != 2 || len(m.Content) != parts*1000 || len(m.Reasoning) != parts*1002-2 {
		t.Errorf("%d messages, %d bytes of content and %d of reasoning in the last", len(got),
			len(m.Content), len(m.Reasoning))
	}
	if d := after.TotalAlloc - before.TotalAlloc; d > 512<<20 {
		t.Errorf("%d MiB were allocated for %d MiB of items", d>>20, len(items)>>20)
	}
}

func TestReferencesAreBounded(t *testing.T) {
	item := json.RawMessage(`{"role":"user","content":"` + strings.Repeat("x", maxReferred/8) + `"}`)
	r := &reader{find: func(string) (json.RawMessage, bool) { return item, true }}
	var err error
	n := 0
	for ; n < 20 && err == nil; n++ {
		err = r.add(json.RawMessage(`{"type":"item_reference","id":"msg_1"}`), reqjson.Index("input", n))
	}
	if e := apierror.From(err); e == nil || e.Param != "input[7].id" {
		t.Errorf("after %d references: %v", n, err)
	}
}
