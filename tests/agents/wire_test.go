package agents

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// TestRecordedClients sends what the sources of clients that publish no packages send (docs/spec/clients.md §3).
func TestRecordedClients(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	if missing := cluster.Missing(root); missing != nil {
		t.Fatalf("programs are missing in bin/: %v; run make build", missing)
	}
	options, err := cluster.Scripted(t.TempDir(), []cluster.Rule{
		{Prompt: `(?s)<tool_response>.*sunny`, Emit: "It is sunny."},
		{Prompt: `(?s)<tools>.*weather`,
			Emit: "Let me look.\n<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"},
		{Prompt: `(?s)title`, Emit: `{"title": "Weather"}`},
	})
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

type wire struct{ url string }

func (w *wire) get(t *testing.T, path string) (int, map[string]any) {
	t.Helper()
	response, err := http.Get(w.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var body map[string]any
	_ = json.NewDecoder(response.Body).Decode(&body)
	return response.StatusCode, body
}

func (w *wire) post(t *testing.T, body string, header http.Header) *http.Response {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, w.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header
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

const weatherTool = `{"type":"function","function":{"name":"weather","description":"Weather of a city.","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}`

// hermes takes a server for the first kind whose probe answers 200, reads the context length from the model list, and
// asks for more output than the context has.
func (w *wire) hermes(t *testing.T) {
	for _, path := range []string{"/api/v1/models", "/api/tags", "/v1/props", "/version"} {
		if status, _ := w.get(t, path); status != http.StatusNotFound {
			t.Errorf("%s answers %d: the server would be taken for another one", path, status)
		}
	}
	if status, _ := w.get(t, "/props"); status != http.StatusOK {
		t.Errorf("/props answers %d", status)
	}
	_, models := w.get(t, "/v1/models")
	entry := models["data"].([]any)[0].(map[string]any)
	if n, _ := entry["context_length"].(float64); n < 1 {
		t.Errorf("no context_length in %v", entry)
	}
	tools := make([]string, 0, 35)
	for i := range 34 {
		tools = append(tools, strings.Replace(weatherTool, `"weather"`, fmt.Sprintf(`"tool_%d"`, i), 1))
	}
	tools = append(tools, weatherTool)
	body := fmt.Sprintf(`{"model":"any","max_tokens":65536,"reasoning":{"enabled":false,"effort":"none"},"tools":[%s],
		"messages":[{"role":"system","content":%q},{"role":"user","content":"What is the weather in Oslo?"}]}`,
		strings.Join(tools, ","), strings.Repeat("Be careful. ", 700))
	var answer struct {
		Choices []struct {
			Message struct {
				ToolCalls []struct {
					ID       string
					Function struct{ Name, Arguments string }
				} `json:"tool_calls"`
			}
			FinishReason string `json:"finish_reason"`
		}
	}
	if err := json.NewDecoder(w.post(t, body, http.Header{}).Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	choice := answer.Choices[0]
	if choice.FinishReason != "tool_calls" || len(choice.Message.ToolCalls) != 1 ||
		choice.Message.ToolCalls[0].Function.Arguments != `{"city": "Oslo"}` {
		t.Errorf("answer %+v", answer)
	}
}

// openWebUI streams with headers of its own, takes calls by index and plays the tool itself, and asks for a title
// without streaming.
func (w *wire) openWebUI(t *testing.T) {
	header := http.Header{"X-OpenWebUI-User-Name": {"User"}, "X-OpenWebUI-Chat-Id": {"c1"}, "Authorization": {"Bearer x"}}
	ask := `{"model":"any","stream":true,"stream_options":{"include_usage":true},"tools":[` + weatherTool +
		`],"messages":[{"role":"user","content":"Oslo?"}%s]}`
	calls, text, finish := stream(t, w.post(t, fmt.Sprintf(ask, ""), header))
	if len(calls) != 1 || calls[0].name != "weather" || calls[0].arguments != `{"city": "Oslo"}` ||
		finish != "tool_calls" {
		t.Fatalf("calls %+v, text %q, finish %q", calls, text, finish)
	}
	history := fmt.Sprintf(`,{"role":"assistant","content":"","tool_calls":[{"index":0,"id":%q,"type":"function","function":{"name":"weather","arguments":%q}}]},
		{"role":"tool","tool_call_id":%q,"content":"sunny"}`, calls[0].id, calls[0].arguments, calls[0].id)
	if _, text, finish = stream(t, w.post(t, fmt.Sprintf(ask, history), header)); text != "It is sunny." ||
		finish != "stop" {
		t.Errorf("second turn: %q, %q", text, finish)
	}
	response := w.post(t, `{"model":"any","stream":false,"max_completion_tokens":1000,"messages":[{"role":"user","content":"Make a title."}]}`, header)
	var whole struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.NewDecoder(response.Body).Decode(&whole); err != nil ||
		whole.Choices[0].Message.Content != `{"title": "Weather"}` {
		t.Errorf("title: %v %+v", err, whole)
	}
}

type call struct{ id, name, arguments string }

// stream reads a chat stream the way a client does that knows calls by their index.
func stream(t *testing.T, response *http.Response) (calls []call, text, finish string) {
	t.Helper()
	if kind := response.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
		t.Errorf("content type %q", kind)
	}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content   string
					ToolCalls []struct {
						Index    *int
						ID       string
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				FinishReason string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		for _, choice := range chunk.Choices {
			text += choice.Delta.Content
			if choice.FinishReason != "" {
				finish = choice.FinishReason
			}
			for _, part := range choice.Delta.ToolCalls {
				if part.Index == nil || *part.Index > len(calls) {
					t.Fatalf("a call without a proper index in %s", data)
				}
				if *part.Index == len(calls) {
					calls = append(calls, call{})
				}
				c := &calls[*part.Index]
				c.id += part.ID
				c.name += part.Function.Name
				c.arguments += part.Function.Arguments
			}
		}
	}
	return calls, text, finish
}
