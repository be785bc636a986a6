package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/tests/client"
)

// toolCall is a call as clients see it.
type toolCall struct {
	ID, Name string
	Args     map[string]string
}

// toolAnswer is a chat answer with calls.
type toolAnswer struct {
	Content, Finish string
	Calls           []toolCall
}

// toolCase turns a golden prompt with tools into a chat request and the call that the golden text makes.
func toolCase(t *testing.T, g goldenCase) (body map[string]any, want toolCall) {
	t.Helper()
	head, rest, ok := strings.Cut(g.Prompt, "\n</tools>")
	if !ok {
		t.Fatalf("no tools in %q", g.Prompt)
	}
	var tools []any
	_, list, _ := strings.Cut(head, "<tools>\n")
	for line := range strings.Lines(list) {
		var tool any
		if err := json.Unmarshal([]byte(line), &tool); err != nil {
			t.Fatal(err)
		}
		tools = append(tools, json.RawMessage(strings.TrimSpace(line)))
	}
	var messages []any
	if _, system, ok := strings.Cut(rest, "</tool_call>\n\n"); ok {
		if text, _, _ := strings.Cut(system, "<|im_end|>"); text != "" {
			messages = append(messages, map[string]any{"role": "system", "content": text})
		}
	}
	user := regexp.MustCompile(`(?s)<\|im_start\|>user\n(.*?)<\|im_end\|>`).FindStringSubmatch(rest)
	messages = append(messages, map[string]any{"role": "user", "content": user[1]})
	want = toolCall{Args: map[string]string{}, Name: regexp.MustCompile(`<function=(\w+)>`).FindStringSubmatch(g.Text)[1]}
	for _, p := range regexp.MustCompile(`(?s)<parameter=(\w+)>\n(.*?)\n</parameter>`).FindAllStringSubmatch(g.Text, -1) {
		want.Args[p[1]] = p[2]
	}
	return map[string]any{"messages": messages, "tools": tools, "max_tokens": 200}, want
}

func readCall(t *testing.T, id, name, arguments string) toolCall {
	t.Helper()
	c := toolCall{ID: id, Name: name}
	if err := json.Unmarshal([]byte(arguments), &c.Args); err != nil {
		t.Errorf("arguments %q: %v", arguments, err)
	}
	return c
}

// ask sends a chat and reads a whole answer.
func ask(t *testing.T, c *client.Client, body map[string]any) toolAnswer {
	t.Helper()
	raw, err := c.Post(t.Context(), "/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Choices []struct {
			Message struct {
				Content   string
				ToolCalls []struct {
					ID       string
					Function struct{ Name, Arguments string }
				} `json:"tool_calls"`
			}
			FinishReason string `json:"finish_reason"`
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	m := v.Choices[0].Message
	out := toolAnswer{Content: m.Content, Finish: v.Choices[0].FinishReason}
	for _, call := range m.ToolCalls {
		out.Calls = append(out.Calls, readCall(t, call.ID, call.Function.Name, call.Function.Arguments))
	}
	return out
}

// askStream is ask over a stream.
func askStream(t *testing.T, c *client.Client, body map[string]any) toolAnswer {
	t.Helper()
	body["stream"] = true
	raw, err := c.Post(t.Context(), "/v1/chat/completions", body)
	delete(body, "stream")
	if err != nil {
		t.Fatal(err)
	}
	var out toolAnswer
	var names, args []string
	sc := bufio.NewScanner(bytes.NewReader(raw))
	for sc.Scan() {
		data, ok := strings.CutPrefix(sc.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var v struct {
			Choices []struct {
				Delta struct {
					Content   string
					ToolCalls []struct {
						Index    int
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				FinishReason string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(data), &v); err != nil {
			t.Fatal(err)
		}
		for _, ch := range v.Choices {
			out.Content += ch.Delta.Content
			if ch.FinishReason != "" {
				out.Finish = ch.FinishReason
			}
			for _, call := range ch.Delta.ToolCalls {
				if call.Index == len(names) {
					names, args = append(names, call.Function.Name), append(args, "")
				}
				args[call.Index] += call.Function.Arguments
			}
		}
	}
	for i := range names {
		out.Calls = append(out.Calls, readCall(t, "", names[i], args[i]))
	}
	return out
}

// checkPrompt: the request renders to the golden prompt, byte for byte.
func checkPrompt(t *testing.T, c *client.Client, body map[string]any, want string) {
	t.Helper()
	raw, err := c.Post(t.Context(), "/apply-template", body)
	if err != nil {
		t.Fatal(err)
	}
	var v struct{ Prompt string }
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, v.Prompt); d != "" {
		t.Errorf("prompt: %s", d)
	}
}

// TestToolCalls: the demonstration models call tools through the chat endpoint, whole and streamed alike, and go on
// with a result.
func TestToolCalls(t *testing.T) {
	_, c := demo(t)
	right, all := 0, 0
	for _, g := range golden(t) {
		if g.Kind != "tools" {
			continue
		}
		all++
		body, want := toolCase(t, g)
		checkPrompt(t, c, body, g.Prompt)
		whole, streamed := ask(t, c, body), askStream(t, c, body)
		got := whole
		for i := range whole.Calls {
			if !strings.HasPrefix(whole.Calls[i].ID, "call_") {
				t.Errorf("call id %q", whole.Calls[i].ID)
			}
			streamed.Calls[i].ID = whole.Calls[i].ID
		}
		if d := cmp.Diff(whole, streamed); d != "" {
			t.Errorf("stream differs from whole: %s", d)
		}
		if len(got.Calls) == 1 && got.Finish == "tool_calls" && got.Calls[0].Name == want.Name &&
			cmp.Equal(got.Calls[0].Args, want.Args) {
			right++
		} else {
			t.Logf("%s%v, golden %s%v", got.Content, got.Calls, want.Name, want.Args)
		}
		if len(got.Calls) != 1 {
			continue
		}
		args, _ := json.Marshal(got.Calls[0].Args)
		body["messages"] = append(body["messages"].([]any),
			map[string]any{"role": "assistant", "content": got.Content,
				"tool_calls": []any{map[string]any{"id": got.Calls[0].ID, "type": "function",
					"function": map[string]any{"name": got.Calls[0].Name, "arguments": string(args)}}}},
			map[string]any{"role": "tool", "tool_call_id": got.Calls[0].ID, "content": "ok"})
		if next := ask(t, c, body); next.Content == "" && len(next.Calls) == 0 {
			t.Errorf("nothing follows the result of %s", got.Calls[0].Name)
		}
	}
	t.Logf("%d of %d calls are the golden ones", right, all)
	if all == 0 || right*10 < all*9 {
		t.Errorf("%d of %d calls are the golden ones", right, all)
	}
}

// TestForcedCalls: tool choice is obeyed whatever the model would rather do.
func TestForcedCalls(t *testing.T) {
	_, c := demo(t)
	tools := []any{}
	for _, name := range []string{"get_weather", "bash"} {
		tools = append(tools, map[string]any{"type": "function",
			"function": map[string]any{"name": name, "strict": true, "parameters": map[string]any{
				"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"},
					"days": map[string]any{"type": "integer"}},
				"required": []string{"city", "days"}, "additionalProperties": false}}})
	}
	body := func(choice any, more string) map[string]any {
		return map[string]any{"messages": chat(more), "tools": tools, "tool_choice": choice, "max_tokens": 120,
			"parallel_tool_calls": false}
	}
	for _, choice := range []any{"required",
		map[string]any{"type": "function", "function": map[string]any{"name": "bash"}}} {
		raw, err := c.Post(t.Context(), "/v1/chat/completions", body(choice, "What is DDTree?"))
		if err != nil {
			t.Fatal(err)
		}
		var v struct {
			Choices []struct {
				Message struct {
					ToolCalls []struct {
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				FinishReason string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatal(err)
		}
		calls := v.Choices[0].Message.ToolCalls
		t.Logf("choice %v: %s %v", choice, v.Choices[0].FinishReason, calls)
		if len(calls) != 1 {
			// A model this small may fill the text of a parameter until the limit.
			if v.Choices[0].FinishReason != "length" {
				t.Errorf("choice %v: %s", choice, raw)
			}
			continue
		}
		var args struct {
			City *string
			Days *int
		}
		if err := json.Unmarshal([]byte(calls[0].Function.Arguments), &args); err != nil ||
			args.City == nil || args.Days == nil {
			t.Errorf("choice %v: arguments %s, %v", choice, calls[0].Function.Arguments, err)
		}
		if _, named := choice.(map[string]any); named && calls[0].Function.Name != "bash" {
			t.Errorf("choice %v calls %s", choice, calls[0].Function.Name)
		}
	}
	if a := ask(t, c, body("none", "Weather in Lima")); len(a.Calls) > 0 || strings.Contains(a.Content, "<tool_call>") {
		t.Errorf("tool_choice none: %+v", a)
	}
}
