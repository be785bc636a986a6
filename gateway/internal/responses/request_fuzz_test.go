package responses

import (
	"encoding/json"
	"net/http/httptest"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/reqjson"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
)

// FuzzRequest: whatever body comes, reading and rendering it gives a run or an answer of the table of errors, and what
// the answer repeats of it is JSON.
func FuzzRequest(f *testing.F) {
	m, err := model.Load(model.Options{Path: gatewaytest.ModelPath(f, gatewaytest.Target)})
	if err != nil {
		f.Fatal(err)
	}
	for _, body := range []string{
		`{"input":"hi","instructions":"be brief","max_output_tokens":5,"reasoning":{"effort":"low","summary":"auto"},"include":["reasoning.encrypted_content"],"metadata":{"a":"b"}}`,
		`{"input":[{"role":"developer","content":"x"},{"role":"user","content":[{"type":"input_text","text":"a"}]},{"type":"reasoning","summary":[{"type":"summary_text","text":"r"}],"encrypted_content":"AAAA"},
		{"type":"function_call","call_id":"c","name":"f","namespace":"n","arguments":"{\"a\":[1,{}]}"},{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"1"}]},
		{"type":"custom_tool_call","call_id":"d","name":"p","input":"x"},{"type":"custom_tool_call_output","call_id":"d","output":"y"},{"type":"item_reference","id":"rs_1"},{"id":"x"},"text"],
		"tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]},{"type":"custom","name":"p","format":{}},{"type":"web_search"}],"tool_choice":"auto","truncation":"disabled"}`,
		`{"input":[{"type":"additional_tools","tools":[{"type":"custom","name":"exec"}]},{"role":"user","content":"go"},{"role":"assistant","content":[{"type":"output_text","text":"on"},{"type":"refusal","refusal":"no"}]}],
		"text":{"format":{"type":"json_schema","name":"s","schema":{"type":"object"}},"verbosity":"low"},"previous_response_id":"resp_1","store":false}`,
	} {
		f.Add([]byte(body))
	}
	s := New(Config{StoreBytes: 1 << 20}, Deps{Turn: turn.New(turn.Config{MaxN: 4}, turn.Deps{})})
	r := httptest.NewRequest("POST", "/v1/responses", nil)
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 4096 {
			return
		}
		o, err := reqjson.Parse(body)
		if err != nil {
			return
		}
		q, err := s.parse(r, o, m, "m", nil)
		if err == nil {
			_, err = s.turn.Prepare(m, q.Request)
		}
		e := apierror.From(err)
		switch {
		case err == nil:
			a := s.newAnswer(m, q)
			a.log = &eventLog{}
			if out := s.keep(r.Context(), a, a.final(statusCompleted, nil), nil); !json.Valid(out) {
				t.Fatalf("the answer is no JSON: %s", out)
			}
		case e.Status < 400 || e.Status >= 500:
			t.Fatalf("error %v is no answer of a client's fault", err)
		}
	})
}
