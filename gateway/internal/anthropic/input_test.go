package anthropic

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
)

func readMessages(t *testing.T, tools *toolcall.Set, messages string) ([]chat.Message, error) {
	t.Helper()
	o, err := reqjson.Parse([]byte(`{"messages":[` + messages + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{tools: tools}
	err = r.messages(o)
	return r.msgs, err
}

func TestAssistantBlocksAreJoined(t *testing.T) {
	got, err := readMessages(t, nil,
		`{"role":"assistant","content":[{"type":"thinking","thinking":""},{"type":"thinking","thinking":"r1"},{"type":"text","text":"a"},
		{"type":"thinking","thinking":"r2"},{"type":"text","text":"b"}]},{"role":"assistant","content":[{"type":"thinking","thinking":""}]}`)
	want := []chat.Message{{Role: chat.RoleAssistant, Content: "ab", Reasoning: "r1r2", HasReasoning: true},
		{Role: chat.RoleAssistant}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(err, d)
	}
}

func TestToolReferencesAreBounded(t *testing.T) {
	set := &toolcall.Set{}
	schema := json.RawMessage(`{"type":"object","description":"` + strings.Repeat("x", maxReferred/8) + `"}`)
	if err := set.Add(toolcall.Tool{Name: "f", Schema: schema, Deferred: true}, nil); err != nil {
		t.Fatal(err)
	}
	reference := `{"type":"tool_reference","tool_name":"f"}`
	_, err := readMessages(t, set, `{"role":"user","content":[`+strings.Repeat(reference+",", 19)+reference+`]}`)
	if e := apierror.From(err); e == nil || e.Param != "messages[0].content[7].tool_name" {
		t.Error(err)
	}
}
