package openai

import (
	"net/http/httptest"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// FuzzChatRequest: whatever body comes, reading and rendering it gives a run or an answer of the table of errors.
func FuzzChatRequest(f *testing.F) {
	m, err := model.Load(model.Options{Path: gatewaytest.ModelPath(f, gatewaytest.Target)})
	if err != nil {
		f.Fatal(err)
	}
	for _, body := range []string{
		`{"messages":[{"role":"user","content":"hi"}],"temperature":0.5,"stop":["a",""],"n":2,"logit_bias":{"5":1},"stream_options":{"include_usage":true}}`,
		`{"messages":[{"role":"system","content":[{"type":"text","text":"x"}]},{"role":"assistant","content":null,"reasoning_content":"r","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":[1,{}]}"}}]},{"role":"tool","tool_call_id":"c","content":"1"}],
		"tools":[{"type":"function","function":{"name":"f","description":"d","strict":true,"parameters":{"type":"object","properties":{"a":{"type":"array"}}}}},{"type":"web_search"}],"tool_choice":"required"}`,
		`{"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"namespace","name":"ns","tools":[{"type":"function","name":"g"}]},{"type":"custom","name":"c","format":{}},{"name":"h","input_schema":{}}],
		"tool_choice":{"type":"function","name":"g","namespace":"ns"},"parallel_tool_calls":false}`,
		`{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"go on"}],"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object"}}},"thinking":{"type":"enabled","budget_tokens":5}}`,
		`{"messages":[{"role":"user","content":"hi"}],"grammar":"root ::= \"a\"*","chat_template_kwargs":{"x":[1]},"reasoning":{"effort":"low"},"pflash":{"mode":"off"},"speculation":{"mode":"tree","budget":5}}`,
	} {
		f.Add([]byte(body))
	}
	s := New(Config{}, Deps{Turn: turn.New(turn.Config{MaxN: 4}, turn.Deps{})})
	r := httptest.NewRequest("POST", "/v1/chat/completions", nil)
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 4096 {
			return
		}
		o, err := reqjson.Parse(body)
		if err != nil {
			return
		}
		check := func(err error) {
			if e := apierror.From(err); e.Status < 400 || e.Status >= 500 {
				t.Fatalf("error %v is no answer of a client's fault", err)
			}
		}
		req, _, err := s.parse(r, o, m)
		if err == nil {
			err = s.chatFields(o, req)
		}
		if err != nil {
			check(err)
			return
		}
		p, err := s.turn.Prepare(m, req)
		if err != nil {
			check(err)
			return
		}
		if len(p.Run.Prompts) != 1 || len(p.Run.Prompts[0].Tokens) == 0 {
			t.Fatal("the run has no prompt")
		}
	})
}
