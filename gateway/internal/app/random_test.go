package app

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"pgregory.net/rapid"
)

// randomPieces are what random answers are made of: text, markers, markup of calls in several formats, whole and broken.
var randomPieces = []string{
	"a", "Hello, ", "\n", " ", "日本", "\U0001F600", "é", "stop", "st", "op", "</think>", "<think>", "<tool_call>", "</tool_call>", "<function=f>", "<function=g>",
	"<parameter=a>", "<parameter=n>", "</parameter>", "</function>", "12", `{"name": "f", "arguments": {"n": 1}}`, `{"name": "f", "arguments": {"a": "x`,
	"<tool_code>", "</tool_code>", "<function_calls>", `<invoke name="f">`, "</invoke>", "</function_calls>", "<function=f(a=\"x\")></function>", "```json\n", "<",
}

// TestRandomStreamsEqualWhole: whatever tokens come, in whatever steps, a chat stream obeys its grammar and says what the whole
// answer says (docs/spec/http-api.md §21 item 2).
func TestRandomStreamsEqualWhole(t *testing.T) {
	r := start(t, nil)
	w := r.target(gatewaytest.WorkerOptions{})
	tools := json.RawMessage(`[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"type":"string"},"n":{"type":"integer"}}}}}]`)
	rapid.Check(t, func(rt *rapid.T) {
		var ids []int32
		for range rapid.IntRange(0, 30).Draw(rt, "n") {
			if rapid.IntRange(0, 7).Draw(rt, "kind") == 0 {
				ids = append(ids, rapid.Int32Range(0, 8000).Draw(rt, "id"))
				continue
			}
			ids = append(ids, r.tok.Encode(rapid.SampledFrom(randomPieces).Draw(rt, "piece"), tokenizer.Options{})...)
		}
		w.SetDecode(gatewaytest.Script{Tokens: ids, Step: rapid.IntRange(1, 9).Draw(rt, "step"), Stop: r.tok.StopTokens()[0], Logprobs: true}.Run)
		body := map[string]any{
			"messages": []any{map[string]any{"role": "user", "content": "Go."}}, "enable_thinking": rapid.Bool().Draw(rt, "thinking"),
			"stop":     rapid.SliceOfN(rapid.SampledFrom([]string{"stop", "日", "\n\n", "12"}), 0, 2).Draw(rt, "stops"),
			"logprobs": rapid.Bool().Draw(rt, "logprobs"), "n": rapid.IntRange(1, 2).Draw(rt, "choices"),
			"parallel_tool_calls": rapid.Bool().Draw(rt, "parallel"),
		}
		if rapid.Bool().Draw(rt, "tools") {
			body["tools"] = tools
		}
		whole := r.post("/v1/chat/completions", string(mustJSON(body)))
		if whole.status != 200 {
			rt.Fatalf("status %d: %s", whole.status, whole.body)
		}
		body["stream"] = true
		a := wholeChat(t, whole)
		b, _ := readChat(t, r.post("/v1/chat/completions", string(mustJSON(body))).body, body["n"].(int), true)
		if d := cmp.Diff(a, b, cmpopts.IgnoreFields(wirecheck.Call{}, "ID"), cmpopts.EquateEmpty()); d != "" {
			rt.Fatalf("%q: stream differs from whole:\n%s", r.tok.Decode(ids, true), d)
		}
	})
}
