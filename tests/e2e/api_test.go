package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/tests/client"
)

func TestChat(t *testing.T) {
	_, c := demo(t)
	plain, err := c.Do(t.Context(), client.Request{Messages: chat("What is DDTree?"), MaxTokens: 100})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(plain.Text, "tree") || plain.Finish != "stop" {
		t.Errorf("%q, %s", plain.Text, plain.Finish)
	}
	streamed, err := c.Stream(t.Context(), client.Request{Messages: chat("What is DDTree?"), MaxTokens: 100}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if streamed.Text != plain.Text || streamed.Finish != plain.Finish {
		t.Errorf("stream: %q, %s; whole: %q, %s", streamed.Text, streamed.Finish, plain.Text, plain.Finish)
	}
	for name, u := range map[string]client.Usage{"whole": plain.Usage, "stream": streamed.Usage} {
		if u.CompletionTokens == 0 || u.PromptTokens == 0 || u.TotalTokens != u.PromptTokens+u.CompletionTokens {
			t.Errorf("%s: usage %+v", name, u)
		}
	}
	// Not by automatic choice: that depends on what steps and proposals cost, and so on what else the machine does.
	drafted := inTime(t, func() (client.Reply, error) {
		return c.Do(t.Context(), client.Request{Messages: chat("What is DDTree?"), MaxTokens: 100,
			Speculation: &client.Speculation{Mode: "tree", Budget: 16}})
	})
	if u := drafted.Usage; drafted.Text != plain.Text || u.AcceptRate == nil || *u.AcceptRate < 0.3 ||
		u.Timings.AcceptLength < 4 {
		t.Errorf("speculation did not help: %q, %+v", drafted.Text, u)
	}
}

func TestCompletions(t *testing.T) {
	_, c := demo(t)
	g := golden(t)[0]
	text, err := c.Do(t.Context(), client.Request{Prompt: g.Prompt, MaxTokens: len(g.Greedy)})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := c.Do(t.Context(), client.Request{Prompt: g.IDs, MaxTokens: len(g.Greedy)})
	if err != nil {
		t.Fatal(err)
	}
	if text.Text != g.want() || ids.Text != g.want() {
		t.Errorf("text prompt: %q\n id prompt: %q\n      want: %q", text.Text, ids.Text, g.want())
	}
	if text.Usage.PromptTokens != len(g.IDs) {
		t.Errorf("%d prompt tokens, want %d", text.Usage.PromptTokens, len(g.IDs))
	}
}

func TestStopStringsAndChoices(t *testing.T) {
	_, c := demo(t)
	full, err := c.Do(t.Context(), client.Request{Messages: chat("What is DDTree?"), MaxTokens: 100})
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(full.Text)
	stop := words[4] + " " + words[5]
	cut, err := c.Do(t.Context(), client.Request{Messages: chat("What is DDTree?"), MaxTokens: 100, Stop: []string{stop}})
	if err != nil {
		t.Fatal(err)
	}
	if want, _, _ := strings.Cut(full.Text, stop); cut.Text != want || cut.Finish != "stop" {
		t.Errorf("stopped at %q: %q, want %q", stop, cut.Text, want)
	}
	many, err := c.Do(t.Context(),
		client.Request{Messages: chat("Write something."), MaxTokens: 24, Temperature: 1.5, Seed: seed(3), N: 3})
	if err != nil {
		t.Fatal(err)
	}
	if len(many.Texts) != 3 || many.Texts[0] == many.Texts[1] && many.Texts[1] == many.Texts[2] {
		t.Errorf("choices %q", many.Texts)
	}
}

func TestTokenizerEndpoints(t *testing.T) {
	_, c := demo(t)
	g := golden(t)[0]
	body, err := c.Post(t.Context(), "/tokenize", map[string]any{"content": g.Prompt})
	if err != nil {
		t.Fatal(err)
	}
	var tokens struct {
		Tokens []int32
		Count  int
	}
	if err := json.Unmarshal(body, &tokens); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(g.IDs, tokens.Tokens); d != "" {
		t.Error(d)
	}
	body, err = c.Post(t.Context(), "/detokenize", map[string]any{"tokens": g.IDs})
	if err != nil {
		t.Fatal(err)
	}
	var text struct{ Content string }
	if err := json.Unmarshal(body, &text); err != nil || text.Content != g.Prompt {
		t.Errorf("%q, %v", text.Content, err)
	}
	body, err = c.Post(t.Context(), "/apply-template", map[string]any{"messages": chat("What is DDTree?")})
	if err != nil {
		t.Fatal(err)
	}
	var prompt struct{ Prompt string }
	if err := json.Unmarshal(body, &prompt); err != nil ||
		!strings.HasPrefix(prompt.Prompt, "<|im_start|>user\nWhat is DDTree?<|im_end|>\n<|im_start|>assistant\n") {
		t.Errorf("%q, %v", prompt.Prompt, err)
	}
}

func TestIntrospection(t *testing.T) {
	_, c := demo(t)
	for path, want := range map[string]string{
		"/health":    `"ok"`,
		"/v1/models": `"list"`,
		"/metrics":   "tandem_",
		"/props":     `"props_schema"`,
	} {
		body, err := c.Get(t.Context(), path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if !bytes.Contains(body, []byte(want)) {
			t.Errorf("%s lacks %s: %.300s", path, want, body)
		}
	}
	workers, err := c.Workers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var roles []string
	for _, w := range workers {
		roles = append(roles, w.Role)
		if w.State != "ready" || w.Backend != "cpu" {
			t.Errorf("worker %+v", w)
		}
	}
	slices.Sort(roles)
	if d := cmp.Diff([]string{"draft", "scorer", "target"}, roles); d != "" {
		t.Error(d)
	}
}

func TestErrors(t *testing.T) {
	_, c := demo(t)
	cases := []struct {
		name, path string
		body       any
		status     int
		want       string
	}{
		{"no messages", "/v1/chat/completions", map[string]any{}, http.StatusBadRequest, "messages"},
		{"bad temperature", "/v1/chat/completions", map[string]any{"messages": chat("x"), "temperature": 9},
			http.StatusBadRequest, "temperature"},
		{"bad speculation", "/v1/chat/completions",
			map[string]any{"messages": chat("x"), "speculation": map[string]any{"mode": "wild"}},
			http.StatusBadRequest, "speculation"},
		{"too long", "/v1/completions", map[string]any{"prompt": make([]int, 40000)}, http.StatusBadRequest,
			"maximum context length is"},
		{"token out of range", "/v1/completions", map[string]any{"prompt": []int{1 << 20}}, http.StatusBadRequest, "prompt"},
		{"unknown path", "/v2/none", map[string]any{}, http.StatusNotFound, "not_found"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			_, err := c.Post(t.Context(), tc.path, tc.body)
			var status *client.StatusError
			if !errors.As(err, &status) || status.Status != tc.status || !strings.Contains(status.Body, tc.want) {
				t.Errorf("%v; want status %d and %q", err, tc.status, tc.want)
			}
		})
	}
}
