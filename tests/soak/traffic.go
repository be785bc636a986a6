package soak

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"
)

// ask is one request: a dialect's path and body, and where its text is.
type ask struct {
	name string // requests of the same name have the same text
	path string
	body map[string]any
	// compresses is set when the scorer reads the prompt first.
	compresses bool
}

// leave says when a client gives up.
type leave int

const (
	stay          leave = iota
	atHeaders           // as soon as the status line is there
	atFirstEvent        // of a stream
	midStream           // after a few events
	whileCompress       // while the scorer reads
	inQueue             // at once, before most requests have a worker
	leaves
)

func (l leave) String() string {
	return [...]string{"stays", "at headers", "at first event", "mid-stream", "during compression", "in the queue"}[l]
}

var questions = []string{
	"What is DDTree?", "What is DFlash?", "Write a Go function that reverses a slice of strings.",
	"What does a draft model do?", "Write a Go function that sums the even numbers of a slice.",
	"How do workers join the gateway?",
}

// asks are the kinds of requests: all dialects, greedy and seeded, streamed or not, plain, structured, with a tool, and
// with a prompt that is compressed.
func asks() []ask {
	var all []ask
	user := func(text string) []map[string]any { return []map[string]any{{"role": "user", "content": text}} }
	for i, q := range questions {
		add := func(kind, path string, body map[string]any) {
			body["model"] = "soak"
			all = append(all, ask{name: fmt.Sprintf("%s %d", kind, i), path: path, body: body})
		}
		add("chat greedy", "/v1/chat/completions",
			map[string]any{"messages": user(q), "max_tokens": 80, "temperature": 0, "stream": true})
		add("chat seeded", "/v1/chat/completions",
			map[string]any{"messages": user(q), "max_tokens": 80, "temperature": 0.9, "seed": 40 + i, "stream": true})
		add("chat whole", "/v1/chat/completions",
			map[string]any{"messages": user(q), "max_tokens": 60, "temperature": 0.7, "seed": 50 + i})
		add("completion", "/v1/completions",
			map[string]any{"prompt": "func main() {\n\t// " + q, "max_tokens": 64, "temperature": 0.8,
				"seed": 60 + i, "stream": true})
		add("responses", "/v1/responses",
			map[string]any{"input": q, "max_output_tokens": 80, "temperature": 0, "stream": true})
		add("messages", "/v1/messages",
			map[string]any{"messages": user(q), "max_tokens": 80, "temperature": 0, "stream": true})
	}
	all = append(all,
		ask{name: "schema", path: "/v1/chat/completions", body: map[string]any{
			"model": "soak", "messages": user("Name a Go package and say what it is for."), "max_tokens": 80,
			"temperature": 0, "stream": true, "response_format": map[string]any{"type": "json_schema",
				"json_schema": map[string]any{"name": "package", "schema": map[string]any{
					"type": "object", "required": []string{"name", "purpose"}, "additionalProperties": false,
					"properties": map[string]any{"name": map[string]any{"type": "string", "maxLength": 20},
						"purpose": map[string]any{"type": "string", "maxLength": 60}},
				}}}}},
		ask{name: "tool", path: "/v1/chat/completions", body: map[string]any{
			"model": "soak", "messages": user("What is the weather in Oslo?"), "max_tokens": 60,
			"temperature": 0, "stream": true, "tools": []map[string]any{{"type": "function",
				"function": map[string]any{"name": "weather", "parameters": map[string]any{
					"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}}}}}}})
	for i := range 2 {
		text := fmt.Sprintf("The access code of lilac is %d.\n",
			55000+i) + strings.Repeat("The sky over the harbour was grey, and nothing of note was written down that day. ", 120)
		all = append(all, ask{name: fmt.Sprintf("compressed %d", i), path: "/v1/chat/completions",
			compresses: true, body: map[string]any{
				"model": "soak", "messages": user(text + "\nWhat is the access code of lilac?"), "max_tokens": 24,
				"temperature": 0, "stream": true, "pflash": map[string]any{"mode": "always", "keep_ratio": 0.2}}})
	}
	return all
}

// refusal is an answer other than 200, or an error event of a stream.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return fmt.Sprintf("status %d: %s", r.status, r.text) }

// send runs a request. left reports that the client gave up as told.
func send(ctx context.Context, client *http.Client, base string, a ask, when leave,
	rng *rand.Rand) (text string, left bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := false
	quit := func() { gone = true; cancel() }
	events := 1
	switch when {
	case midStream:
		events = 2 + rng.IntN(12)
	case whileCompress:
		timer := time.AfterFunc(time.Duration(rng.IntN(60))*time.Millisecond, cancel)
		defer timer.Stop()
	case inQueue:
		timer := time.AfterFunc(time.Duration(rng.IntN(4000))*time.Microsecond, cancel)
		defer timer.Stop()
	}
	defer func() {
		if ctx.Err() != nil && when != stay {
			left, err = true, nil
		}
	}()
	body, err := json.Marshal(a.body)
	if err != nil {
		return "", false, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, base+a.path, bytes.NewReader(body))
	if err != nil {
		return "", false, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return "", false, err
	}
	defer response.Body.Close()
	if when == atHeaders {
		quit()
		return "", true, nil
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
		return "", false, &refusal{response.StatusCode, string(text)}
	}
	if a.body["stream"] != true {
		whole, err := io.ReadAll(response.Body)
		if err != nil {
			return "", false, err
		}
		var reply struct {
			Choices []struct{ Message struct{ Content string } }
		}
		if err := json.Unmarshal(whole, &reply); err != nil || len(reply.Choices) == 0 {
			return "", false, fmt.Errorf("answer %.200q: %w", whole, err)
		}
		return reply.Choices[0].Message.Content, false, nil
	}
	var out strings.Builder
	ended := false
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 8<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if !ok {
			continue
		}
		if events--; events == 0 && (when == atFirstEvent || when == midStream) {
			quit()
			return "", true, nil
		}
		data = strings.TrimSpace(data)
		if data == "[DONE]" {
			return out.String(), false, nil
		}
		piece, last, err := event(data)
		if err != nil {
			return "", false, err
		}
		out.WriteString(piece)
		ended = ended || last
	}
	if err := lines.Err(); err != nil {
		return "", false, err
	}
	if !ended && !gone {
		return "", false, io.ErrUnexpectedEOF
	}
	return out.String(), false, nil
}

// event returns the text of an event of any dialect, and whether it is the last one.
func event(data string) (text string, last bool, err error) {
	var e struct {
		Type    string
		Error   *struct{ Message string }
		Choices []struct {
			Text  string
			Delta struct {
				Content   string
				Reasoning string `json:"reasoning_content"`
				ToolCalls []struct {
					Function struct{ Name, Arguments string }
				} `json:"tool_calls"`
			}
		}
		Delta json.RawMessage
	}
	if err := json.Unmarshal([]byte(data), &e); err != nil {
		return "", false, fmt.Errorf("event %.200q: %w", data, err)
	}
	if e.Error != nil || e.Type == "error" || e.Type == "response.failed" {
		return "", false, &refusal{http.StatusOK, data}
	}
	var out strings.Builder
	for _, c := range e.Choices {
		out.WriteString(c.Text + c.Delta.Reasoning + c.Delta.Content)
		for _, call := range c.Delta.ToolCalls {
			out.WriteString(call.Function.Name + call.Function.Arguments)
		}
	}
	switch e.Type {
	case "response.output_text.delta", "response.reasoning_text.delta":
		var delta string
		err = json.Unmarshal(e.Delta, &delta)
		out.WriteString(delta)
	case "content_block_delta":
		var delta struct{ Text, Thinking string }
		err = json.Unmarshal(e.Delta, &delta)
		out.WriteString(delta.Thinking + delta.Text)
	}
	return out.String(), e.Type == "message_stop" || e.Type == "response.completed" || e.Type == "response.incomplete", err
}
