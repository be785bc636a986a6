package agents

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// replayContext is the demonstration model's context.
const replayContext = 32768

// TestRecordedClients sends what clients send that are not run here (docs/spec/clients.md §3): requests of Hermes agent
// as recorded, those of Open WebUI as its source builds them. Answers are read the way the client reads them.
func TestRecordedClients(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	if missing := cluster.Missing(root); missing != nil {
		t.Fatalf("programs are missing in bin/: %v; run make build", missing)
	}
	options, err := cluster.Scripted(t.TempDir(), replayRules())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w := &wire{url: c.HTTP}
	t.Run("hermes", w.hermes)
	t.Run("open-webui", w.openWebUI)
}

// replayRules answer by what the prompt shows, in a thinking turn after a thought.
func replayRules() []cluster.Rule {
	call := func(city string) string {
		return "<tool_call>\n<function=weather>\n<parameter=city>\n" + city + "\n</parameter>\n</function>\n</tool_call>"
	}
	var out []cluster.Rule
	for _, r := range []cluster.Rule{
		{Prompt: `<tool_response>.*sunny`, Emit: "It is sunny."},
		{Prompt: `a title`, Emit: `{"title": "Weather"}`},
		{Prompt: `tags`, Emit: `{"tags": ["weather"]}`},
		{Prompt: `The weather in Oslo is$`, Emit: " sunny today."},
		{Prompt: `<tools>.*Oslo and Rome`, Emit: "Let me look.\n" + call("Oslo") + "\n" + call("Rome")},
		{Prompt: `<tools>.*Oslo`, Emit: "Let me look.\n" + call("Oslo")},
	} {
		thinking := r
		thinking.Prompt, thinking.Emit = `(?s)`+r.Prompt+`.*<think>\n$`, "I need the weather.\n</think>\n\n"+r.Emit
		r.Prompt = `(?s)` + r.Prompt
		out = append(out, thinking, r)
	}
	return out
}

type wire struct{ url string }

// get returns status, text and what of the text is JSON.
func (w *wire) get(t *testing.T, path string) (status int, text string, body map[string]any) {
	t.Helper()
	response, err := http.Get(w.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = json.Unmarshal(raw, &body)
	return response.StatusCode, string(raw), body
}

// post sends a request that must be answered with 200.
func (w *wire) post(t *testing.T, path, body string, header http.Header) *http.Response {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, w.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header.Clone()
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		t.Fatalf("status %d: %s", response.StatusCode, text)
	}
	return response
}

// whole sends a chat request without streaming and returns its first choice.
func (w *wire) whole(t *testing.T, body string, header http.Header) choice {
	t.Helper()
	var out struct {
		Choices []choice
	}
	if err := json.NewDecoder(w.post(t, "/v1/chat/completions", body, header).Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	if len(out.Choices) != 1 {
		t.Fatalf("%d choices", len(out.Choices))
	}
	return out.Choices[0]
}

type choice struct {
	Message struct {
		Content   string
		Reasoning string `json:"reasoning_content"`
	}
	FinishReason string `json:"finish_reason"`
}

const weatherTool = `{"type":"function","function":{"name":"weather","description":"Weather of a city.","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}`

// turn is what a client has of a streamed chat answer.
type turn struct {
	role, text, reasoning, finish string
	calls                         []call
	usage                         map[string]any // with the members of timings, as Open WebUI joins them
	clamped                       float64        // finish_details.max_tokens_clamped
	done                          bool           // [DONE] came
}

type call struct{ id, name, arguments string }

// stream reads a chat stream as Hermes agent and Open WebUI do: calls by their index, the id from the first part of a
// call, a name that comes again in place of the first, members that are absent but never null where an object belongs.
func stream(t *testing.T, response *http.Response) (out turn) {
	t.Helper()
	if kind := response.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		t.Errorf("content type %q", kind)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
			continue
		case data == "[DONE]":
			out.done = true
			continue
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Role, Content string
					Reasoning     string `json:"reasoning_content"`
					ToolCalls     []struct {
						Index    *int
						ID       string
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				FinishReason  string `json:"finish_reason"`
				FinishDetails struct {
					Clamped float64 `json:"max_tokens_clamped"`
				} `json:"finish_details"`
			}
			Usage   map[string]any
			Timings json.RawMessage
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		if chunk.Usage != nil {
			out.usage = chunk.Usage
		}
		if chunk.Timings != nil {
			if err := json.Unmarshal(chunk.Timings, &out.usage); err != nil || string(chunk.Timings) == "null" {
				t.Errorf("timings %s are no object (%v): Open WebUI ends the answer there", chunk.Timings, err)
			}
		}
		for _, choice := range chunk.Choices {
			out.role += choice.Delta.Role
			out.text += choice.Delta.Content
			out.reasoning += choice.Delta.Reasoning
			if choice.FinishReason != "" {
				out.finish, out.clamped = choice.FinishReason, choice.FinishDetails.Clamped
			}
			for _, part := range choice.Delta.ToolCalls {
				if part.Index == nil || *part.Index > len(out.calls) {
					t.Fatalf("a call without a proper index in %s", data)
				}
				if *part.Index == len(out.calls) {
					out.calls = append(out.calls, call{id: part.ID})
				}
				c := &out.calls[*part.Index]
				if part.Function.Name != "" {
					c.name = part.Function.Name
				}
				c.arguments += part.Function.Arguments
			}
		}
	}
	return out
}
