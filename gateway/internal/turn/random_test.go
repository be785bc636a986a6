package turn_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"pgregory.net/rapid"
)

// randomPieces are what random answers are made of: text, markers, markup of calls in several formats, whole
// and broken.
var randomPieces = []string{
	"a", "Hello, ", "\n", " ", "日本", "\U0001F600", "é", "stop", "st", "op", "</think>", "<think>", "<tool_call>",
	"</tool_call>", "<function=f>", "<function=g>", "<parameter=a>", "<parameter=n>", "</parameter>", "</function>", "12",
	`{"name": "f", "arguments": {"n": 1}}`, `{"name": "f", "arguments": {"a": "x`,
	"<tool_code>", "</tool_code>", "<function_calls>", `<invoke name="f">`, "</invoke>", "</function_calls>",
	"<function=f(a=\"x\")></function>", "```json\n", "<",
}

// randomScript is a worker that says random tokens in random steps.
func randomScript(r *rig.Rig, rt *rapid.T) (gatewaytest.Decode, []int32) {
	var ids []int32
	for range rapid.IntRange(0, 30).Draw(rt, "n") {
		if rapid.IntRange(0, 7).Draw(rt, "kind") == 0 {
			ids = append(ids, rapid.Int32Range(0, 8000).Draw(rt, "id"))
			continue
		}
		ids = append(ids, r.Tok.Encode(rapid.SampledFrom(randomPieces).Draw(rt, "piece"), tokenizer.Options{})...)
	}
	return gatewaytest.Script{Tokens: ids, Step: rapid.IntRange(1, 9).Draw(rt, "step"), Stop: r.Tok.StopTokens()[0],
		Logprobs: true}.Run, ids
}

// TestRandomStreamsEqualWholeInAllDialects: the same for Responses, Messages and legacy completions.
func TestRandomStreamsEqualWholeInAllDialects(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	schema := map[string]any{"properties": map[string]any{"a": map[string]any{"type": "string"},
		"n": map[string]any{"type": "integer"}}}
	for _, path := range []string{"/v1/responses", "/v1/messages", "/v1/completions"} {
		t.Run(strings.TrimPrefix(path, "/v1/"), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				script, ids := randomScript(r, rt)
				w.SetDecode(script)
				body := map[string]any{"stop": rapid.SliceOfN(rapid.SampledFrom([]string{"stop", "日", "\n\n", "12"}),
					0, 2).Draw(rt, "stops")}
				if path == "/v1/completions" {
					body["prompt"], body["echo"] = "Go.", rapid.Bool().Draw(rt, "echo")
					if rapid.Bool().Draw(rt, "logprobs") {
						body["logprobs"] = 2
					}
				} else {
					body["input"], body["messages"] = "Go.", []any{map[string]any{"role": "user", "content": "Go."}}
					body["enable_thinking"], body["parallel_tool_calls"] = rapid.Bool().Draw(rt, "thinking"),
						rapid.Bool().Draw(rt, "parallel")
					if rapid.Bool().Draw(rt, "tools") {
						tool := map[string]any{"name": "f", "parameters": schema, "type": "function"}
						if path == "/v1/messages" {
							tool = map[string]any{"name": "f", "input_schema": schema}
						}
						body["tools"] = []any{tool}
					}
					if path == "/v1/responses" && rapid.Bool().Draw(rt, "logprobs") {
						body["top_logprobs"] = 1
					}
				}
				whole := r.Post(path, string(rig.JSON(body)))
				if whole.Status != 200 {
					rt.Fatalf("status %d: %s", whole.Status, whole.Body)
				}
				body["stream"] = true
				stream := r.Post(path, string(rig.JSON(body)))
				if d := cmp.Diff(comparable(t, path, whole.Body, false), comparable(t, path, stream.Body, true),
					cmpopts.EquateEmpty()); d != "" {
					rt.Fatalf("%q: stream differs from whole:\n%s", r.Tok.Decode(ids, true), d)
				}
			})
		})
	}
}

// comparable is an answer without what differs from request to request; that of a stream is put together from
// its events.
func comparable(t *testing.T, path string, body []byte, stream bool) any {
	t.Helper()
	var v any
	switch {
	case !stream:
		if err := json.Unmarshal(body, &v); err != nil {
			t.Fatal(err)
		}
	case path == "/v1/responses":
		a, err := wirecheck.Responses(body)
		if err != nil {
			t.Fatalf("%v\n%s", err, body)
		}
		v = a.Final
	case path == "/v1/messages":
		a, err := wirecheck.Messages(body)
		if err != nil {
			t.Fatalf("%v\n%s", err, body)
		}
		v = a.Message
	}
	if path != "/v1/completions" {
		return settled(v)
	}
	// Legacy completions: text, log-probabilities and the end.
	out := map[string]any{"text": ""}
	var tokens, top []any
	add := func(c any) {
		text, _ := rig.At(c, "text").(string)
		out["text"] = out["text"].(string) + text
		if f := rig.At(c, "finish_reason"); f != nil {
			out["finish"], out["stop"], out["details"] = f, rig.At(c, "stop_sequence"), rig.At(c, "finish_details")
		}
		list, _ := rig.At(c, "logprobs", "tokens").([]any)
		tokens = append(tokens, list...)
		list, _ = rig.At(c, "logprobs", "top_logprobs").([]any)
		top = append(top, list...)
	}
	if stream {
		for _, ev := range rig.Events(t, body) {
			add(rig.At(ev, "choices", 0))
		}
	} else {
		add(rig.At(v, "choices", 0))
	}
	out["tokens"], out["top"] = tokens, top
	return out
}

// TestRandomStreamsEqualWhole: whatever tokens come, in whatever steps, a chat stream obeys its grammar and says what
// the whole answer says (docs/spec/http-api.md §21 item 2).
func TestRandomStreamsEqualWhole(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	tools := json.RawMessage(`[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"type":"string"},"n":{"type":"integer"}}}}}]`)
	rapid.Check(t, func(rt *rapid.T) {
		script, ids := randomScript(r, rt)
		w.SetDecode(script)
		body := map[string]any{
			"messages":        []any{map[string]any{"role": "user", "content": "Go."}},
			"enable_thinking": rapid.Bool().Draw(rt, "thinking"),
			"stop":            rapid.SliceOfN(rapid.SampledFrom([]string{"stop", "日", "\n\n", "12"}), 0, 2).Draw(rt, "stops"),
			"logprobs":        rapid.Bool().Draw(rt, "logprobs"), "n": rapid.IntRange(1, 2).Draw(rt, "choices"),
			"parallel_tool_calls": rapid.Bool().Draw(rt, "parallel"),
		}
		if rapid.Bool().Draw(rt, "tools") {
			body["tools"] = tools
		}
		whole := r.Post("/v1/chat/completions", string(rig.JSON(body)))
		if whole.Status != 200 {
			rt.Fatalf("status %d: %s", whole.Status, whole.Body)
		}
		body["stream"] = true
		a := rig.WholeChat(t, whole)
		b, _ := rig.ReadChat(t, r.Post("/v1/chat/completions", string(rig.JSON(body))).Body, body["n"].(int), true)
		if d := cmp.Diff(a, b, cmpopts.IgnoreFields(wirecheck.Call{}, "ID"), cmpopts.EquateEmpty()); d != "" {
			rt.Fatalf("%q: stream differs from whole:\n%s", r.Tok.Decode(ids, true), d)
		}
	})
}
