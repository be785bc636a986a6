package openai_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
)

func TestChatStreamEqualsWhole(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	const (
		f1    = "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>"
		tools = `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"},"n":{"type":"integer"}}}}}]`
	)
	tests := []struct {
		name, text, more string
		want             rig.ChatState
	}{
		{"plain", "Hello, wörld 日本!", "", rig.ChatState{Content: "Hello, wörld 日本!", Finish: "stop"}},
		{"thinking", "it is\nso\n</think>\n\nYes.", `"enable_thinking":true`,
			rig.ChatState{Reasoning: "it is\nso", Content: "Yes.", Finish: "stop"}},
		{"stop string", "one two three", `"stop":["wo th"]`, rig.ChatState{Content: "one t", Finish: "stop", Stop: "wo th"}},
		{"length", "one two three four five six", `"max_tokens":2`, rig.ChatState{Finish: "length"}},
		{"two choices", "both", `"n":2`, rig.ChatState{Content: "both", Finish: "stop"}},
		{"logprobs", "a b", `"logprobs":true,"top_logprobs":2`, rig.ChatState{Content: "a b", Finish: "stop"}},
		{"empty", "", "", rig.ChatState{Finish: "stop"}},
		{"markup is text without tools", f1, "", rig.ChatState{Content: f1, Finish: "stop"}},
		{"tool call", "\n" + f1, tools,
			rig.ChatState{Calls: []wirecheck.Call{{Name: "f", Arguments: `{"a": "x", "n": 3}`}}, Finish: "tool_calls"}},
		{"text, two calls, text", "Look:" + f1 + "\n" + f1 + "\nDone.", tools,
			rig.ChatState{Content: "Look:\nDone.", Finish: "tool_calls",
				Calls: []wirecheck.Call{{Name: "f", Arguments: `{"a": "x", "n": 3}`},
					{Name: "f", Arguments: `{"a": "x", "n": 3}`}}}},
		{"one call only", f1 + f1, tools + `,"parallel_tool_calls":false`,
			rig.ChatState{Calls: []wirecheck.Call{{Name: "f", Arguments: `{"a": "x", "n": 3}`}}, Finish: "tool_calls"}},
		{"reasoning before a call", "why\n</think>\n\n" + f1, tools + `,"enable_thinking":true`,
			rig.ChatState{Reasoning: "why",
				Calls: []wirecheck.Call{{Name: "f", Arguments: `{"a": "x", "n": 3}`}}, Finish: "tool_calls"}},
		{"unknown tool", "<tool_call>\n<function=g>\n</function>\n</tool_call>", tools,
			rig.ChatState{Content: "<tool_call>\n<function=g>\n</function>\n</tool_call>", Finish: "stop"}},
		{"stop strings do not see markup", "ok" + f1 + "end fun", tools + `,"stop":["fun"]`,
			rig.ChatState{Content: "okend ", Stop: "fun", Finish: "stop",
				Calls: []wirecheck.Call{{Name: "f", Arguments: `{"a": "x", "n": 3}`}}}},
		{"no calls wanted", f1, tools + `,"tool_choice":"none"`, rig.ChatState{Content: f1, Finish: "stop"}},
		{"logprobs of content only", "ab" + f1 + "cd", tools + `,"logprobs":true`,
			rig.ChatState{Content: "abcd", Finish: "tool_calls",
				Calls: []wirecheck.Call{{Name: "f", Arguments: `{"a": "x", "n": 3}`}}}},
	}
	for _, tt := range tests {
		for _, step := range []int{1, 3, 16} {
			t.Run(tt.name, func(t *testing.T) {
				w.SetDecode(r.Reply(tt.text, step))
				n := 1
				if strings.Contains(tt.more, `"n":2`) {
					n = 2
				}
				more := tt.more
				if more != "" {
					more += ","
				}
				whole := r.Post("/v1/chat/completions", rig.ChatBody(more+`"stream":false`))
				if whole.Status != 200 {
					t.Fatalf("status %d: %s", whole.Status, whole.Body)
				}
				stream := r.Post("/chat/completions", rig.ChatBody(more+`"stream":true`))
				if ct := stream.Header.Get("Content-Type"); ct != "text/event-stream; charset=utf-8" {
					t.Errorf("content type %q", ct)
				}
				a := rig.WholeChat(t, whole)
				b, usage := rig.ReadChat(t, stream.Body, n, true)
				noIDs := cmpopts.IgnoreFields(wirecheck.Call{}, "ID")
				if d := cmp.Diff(a, b, noIDs); d != "" {
					t.Errorf("stream differs from whole: %s", d)
				}
				for _, c := range a {
					if tt.want.Content == "" && tt.want.Finish == "length" {
						tt.want.Content = c.Content
					}
					if c.Content != tt.want.Content || c.Reasoning != tt.want.Reasoning || c.Finish != tt.want.Finish ||
						c.Stop != tt.want.Stop ||
						!cmp.Equal(c.Calls, tt.want.Calls, noIDs) {
						t.Errorf("got %+v, want %+v", c, tt.want)
					}
				}
				v := whole.JSON(t)
				if x, y := rig.At(v, "usage", "completion_tokens"), usage["completion_tokens"]; x != y {
					t.Errorf("usage: %v whole, %v streamed", x, y)
				}
				if strings.Contains(tt.more, "logprobs") && strings.Join(a[0].Tokens, "") != tt.want.Content {
					t.Errorf("tokens %q do not spell the content", a[0].Tokens)
				}
			})
		}
	}
}

func TestUsageAndTimings(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("one two three four", 2))
	v := r.Post("/v1/chat/completions", rig.ChatBody(`"seed":7,"temperature":0.5`)).JSON(t)
	n := float64(len(r.Encode("one two three four")))
	if rig.At(v, "usage", "completion_tokens") != n ||
		rig.At(v, "usage", "total_tokens").(float64) != n+rig.At(v, "usage", "prompt_tokens").(float64) {
		t.Errorf("usage %v, want %v completion tokens", v["usage"], n)
	}
	for _, k := range []string{"queue_ms", "compress_ms", "restore_ms", "prefill_ms", "ttft_ms", "decode_ms", "total_ms",
		"decode_tokens_per_sec",
		"prefill_tokens_per_sec", "verify_steps", "accept_length", "drafted_tokens", "accepted_tokens",
		"lookup_drafted_tokens", "lookup_accepted_tokens"} {
		if _, ok := rig.At(v, "usage", "timings", k).(float64); !ok {
			t.Errorf("timings lack %s: %v", k, rig.At(v, "usage", "timings"))
		}
	}
	if rate, ok := rig.At(v, "usage", "accept_rate").(float64); !ok || rate <= 0 || rate > 1 {
		t.Errorf("accept_rate %v", rig.At(v, "usage", "accept_rate"))
	}
	if rig.At(v, "model") != "tiny" || rig.At(v, "object") != "chat.completion" ||
		rig.At(v, "service_tier") != "default" ||
		!strings.HasPrefix(rig.At(v, "id").(string), "chatcmpl-") {
		t.Errorf("envelope %v", v)
	}
	w.SetDecode(r.Reply("a < b && c", 1))
	if a := r.Post("/v1/chat/completions", rig.ChatBody("")); !strings.Contains(string(a.Body), `"a < b && c"`) {
		t.Errorf("code was escaped for HTML: %s", a.Body)
	}
	req := w.Requests()[0]
	if req.GetSampling().GetSeed() != 7 || req.GetSampling().GetTemperature() != 0.5 || len(req.GetStopTokens()) == 0 ||
		req.GetTopLogprobs() != -1 {
		t.Errorf("worker was asked %v", req)
	}
}

// TestTimingsBySource: every dialect tells, whole and streamed, how many proposed tokens there were and were right, and
// which of them lookup proposed; several choices are summed.
func TestTimingsBySource(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	const text = "one two three four"
	w.SetDecode(r.Reply(text, 2))
	n := len(r.Encode(text))
	steps := (n + 1) / 2
	timings := regexp.MustCompile(`"timings":(\{[^}]*\})`)
	for path, request := range map[string]struct {
		body    string
		choices int
	}{
		"/v1/chat/completions": {`"messages":[{"role":"user","content":"Count."}],"n":2`, 2},
		"/v1/completions":      {`"prompt":["Count"],"max_tokens":100,"n":2`, 2},
		"/v1/responses":        {`"input":"Count."`, 1},
		"/v1/messages":         {`"messages":[{"role":"user","content":"Count."}],"max_tokens":100`, 1},
	} {
		for _, stream := range []bool{false, true} {
			a := r.Post(path, fmt.Sprintf(`{%s,"stream":%v}`, request.body, stream))
			all := timings.FindAllSubmatch(a.Body, -1)
			if a.Status != 200 || len(all) == 0 {
				t.Errorf("%s: %d %s", path, a.Status, a.Body)
				continue
			}
			var got map[string]float64
			if err := json.Unmarshal(all[len(all)-1][1], &got); err != nil {
				t.Fatal(err)
			}
			for k, want := range map[string]int{
				"drafted_tokens": 3 * steps, "accepted_tokens": n - steps, "lookup_drafted_tokens": steps,
				"lookup_accepted_tokens": 1,
			} {
				if want *= request.choices; got[k] != float64(want) {
					t.Errorf("%s, stream %v: %s is %v, want %d", path, stream, k, got[k], want)
				}
			}
		}
	}
}

func TestUsageChunkRules(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply("hi", 1))
	for _, tt := range []struct {
		name, more string
		want       bool
		null       bool
	}{
		{"default", "", true, false},
		{"asked for", `,"stream_options":{"include_usage":true}`, true, true},
		{"asked against", `,"stream_options":{"include_usage":false}`, false, false},
		{"null options", `,"stream_options":null`, true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			body := r.Post("/v1/chat/completions", rig.ChatBody(`"stream":true`+tt.more)).Body
			rig.ReadChat(t, body, 1, tt.want)
			evs := rig.Events(t, body)
			if _, has := evs[0]["usage"]; has != tt.null {
				t.Errorf("first chunk has usage: %v, want %v", has, tt.null)
			}
		})
	}
}

func TestCompletions(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	w.SetDecode(r.Reply(" world", 1))
	v := r.Post("/v1/completions", `{"prompt":["Hello","Bye"],"n":2,"echo":true,"logprobs":1}`).JSON(t)
	if l := v["choices"].([]any); len(l) != 4 || rig.At(l, 0, "text") != "Hello world" ||
		rig.At(l, 3, "text") != "Bye world" ||
		rig.At(l, 2, "index") != 2.0 {
		t.Fatalf("choices %v", v["choices"])
	}
	lp := rig.At(v, "choices", 0, "logprobs")
	tokens := rig.At(lp, "tokens").([]any)
	joined := ""
	for i, tk := range tokens {
		if off := rig.At(lp, "text_offset", i).(float64); int(off) != len(joined) {
			t.Errorf("offset of token %d is %v, want %d", i, off, len(joined))
		}
		joined += tk.(string)
	}
	if joined != "Hello world" || rig.At(lp, "token_logprobs", 0) != nil || rig.At(lp, "token_logprobs", 1) != -0.5 {
		t.Errorf("logprobs %v", lp)
	}
	// Token arrays, prompt scoring alone.
	ids := r.Encode("abc def")
	req := `{"prompt":` + strings.ReplaceAll(strings.ReplaceAll(string(rig.JSON(ids)), " ", ""), "\n",
		"") + `,"echo":true,"max_tokens":0,"logprobs":0}`
	v = r.Post("/completions", req).JSON(t)
	if rig.At(v, "choices", 0, "text") != "abc def" ||
		len(rig.At(v, "choices", 0, "logprobs", "tokens").([]any)) != len(ids) ||
		rig.At(v, "usage", "completion_tokens") != 0.0 {
		t.Errorf("scored prompt: %v", v)
	}
	// Stream.
	evs := rig.Events(t, r.Post("/v1/completions", `{"prompt":"Hello","stream":true,"echo":true}`).Body)
	text := ""
	for _, e := range evs {
		if s, ok := rig.At(e, "choices", 0, "text").(string); ok {
			text += s
		}
		if e["object"] != "text_completion" {
			t.Errorf("object %v", e["object"])
		}
	}
	if text != "Hello world" {
		t.Errorf("streamed %q", text)
	}
}

// TestLimitInACall: a call that the token limit cuts off is in the answer as far as it came, streamed and whole, with
// finish_reason length: of a function, with arguments that wait for their end, of a custom tool, of an older function.
func TestLimitInACall(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	const function = `"name":"f","parameters":{"properties":{"a":{"type":"string"},"list":{"type":"array"}}}`
	const functions, custom = `"tools":[{"type":"function","function":{` + function + `}}]`,
		`"tools":[{"type":"custom","custom":{"name":"f"}}]`
	const open = "Writing.\n<tool_call>\n<function=f>\n"
	for _, tt := range []struct {
		name, tools, text string
		want              wirecheck.Call
	}{
		{"function", functions, open + "<parameter=a>\nsome long text that goes on",
			wirecheck.Call{Arguments: `{"a": "some long text that goes on`}},
		{"array", functions, open + "<parameter=list>\n[\"some long text that goes on",
			wirecheck.Call{Arguments: `{"list": ["some long text that goes on`}},
		{"second call", functions, rig.CallText("f", "a", "x") + "\n<tool_call>\n<function=f>\n<parameter=a>\nsome",
			wirecheck.Call{Arguments: `{"a": "some`}},
		{"custom", custom, open + "<parameter=input>\nsome long text that goes on",
			wirecheck.Call{Custom: true, Arguments: "some long text that goes on"}},
		{"custom in another form", custom, open + "<parameter=text>\nsome long text that goes on",
			wirecheck.Call{Custom: true, Arguments: `{"text": "some long text that goes on`}},
		{"function_call", `"functions":[{` + function + `}]`, open + "<parameter=a>\nsome long text that goes on",
			wirecheck.Call{Legacy: true, Arguments: `{"a": "some long text that goes on`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := len(r.Encode(tt.text))
			w.SetDecode(gatewaytest.Script{Tokens: r.Encode(tt.text + " and on and on"), Step: 3}.Run)
			more := tt.tools + fmt.Sprintf(`,"max_tokens":%d`, n)
			whole := rig.WholeChat(t, r.Post("/v1/chat/completions", rig.ChatBody(more)))[0]
			stream, _ := rig.ReadChat(t, r.Post("/v1/chat/completions", rig.ChatBody(more+`,"stream":true`)).Body, 1, true)
			if d := cmp.Diff(whole, stream[0], cmpopts.IgnoreFields(wirecheck.Call{}, "ID")); d != "" {
				t.Errorf("stream differs from whole: %s", d)
			}
			tt.want.Name = "f"
			if n := len(whole.Calls); n == 0 || whole.Calls[n-1] != tt.want || whole.Finish != "length" {
				t.Errorf("got %+v", whole)
			}
		})
	}
}
