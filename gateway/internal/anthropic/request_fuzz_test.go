package anthropic

import (
	"net/http/httptest"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// FuzzRequest: whatever body comes, reading and rendering it gives a run or an answer of the table of errors, and
// counting its tokens gives the prompt of that run.
func FuzzRequest(f *testing.F) {
	m, err := model.Load(model.Options{Path: gatewaytest.ModelPath(f, gatewaytest.Target)})
	if err != nil {
		f.Fatal(err)
	}
	for _, body := range []string{
		`{"max_tokens":5,"system":[{"type":"text","text":"x-anthropic-billing-header: a"},{"type":"text","text":"s"}],"messages":[{"role":"user","content":"hi"}],"thinking":{"type":"enabled","budget_tokens":5},"stop_sequences":["x"]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]},{"role":"system","content":"later"},
		{"role":"assistant","content":[{"type":"thinking","thinking":"r","signature":"s"},{"type":"redacted_thinking","data":"x"},{"type":"text","text":"t"},{"type":"tool_use","id":"u","name":"f","input":{"a":[1,{}]}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"u","is_error":true,"content":[{"type":"tool_reference","tool_name":"g"},{"type":"text","text":"x"}]},{"type":"document","source":{"type":"text","data":"d"}}]}],
		"tools":[{"name":"f","input_schema":{"type":"object","properties":{"a":{"type":"array"}}}},{"name":"g","input_schema":{},"defer_loading":true},{"type":"web_search_20250305","name":"web_search"}],"tool_choice":{"type":"any","disable_parallel_tool_use":true}}`,
		`{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"go on"}],"output_config":{"effort":"low","format":{"type":"json_schema","schema":{"type":"object"}}},"context_management":{"edits":[]}}`,
	} {
		f.Add([]byte(body))
	}
	s := New(Config{}, Deps{Turn: turn.New(turn.Config{MaxN: 4}, turn.Deps{})})
	r := httptest.NewRequest("POST", "/v1/messages", nil)
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 4096 {
			return
		}
		o, err := reqjson.Parse(body)
		if err != nil {
			return
		}
		req, err := s.parse(r, o, m)
		var p *turn.Prepared
		if err == nil {
			p, err = s.turn.Prepare(m, req)
		}
		e := apierror.From(err)
		switch {
		case err == nil:
			r, err := s.turn.Render(m, req)
			if err != nil || len(r.Tokens) != p.PromptTokens {
				t.Fatalf("%d tokens counted, %d in the run, %v", len(r.Tokens), p.PromptTokens, err)
			}
		case e.Status < 400 || e.Status >= 500:
			t.Fatalf("error %v is no answer of a client's fault", err)
		}
	})
}
