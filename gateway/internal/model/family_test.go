package model

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// familyModel is a model of a family: the built-in template, and the demonstration tokenizer with the family's marks in
// the place of reserved control tokens.
func familyModel(t *testing.T, f toolcall.Family) *Model {
	t.Helper()
	var marks []string
	if f == toolcall.GemmaFamily {
		marks = []string{"<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", `<|"|>`, "<|turn>", "<turn|>",
			"<|think|>"}
	}
	return markedModel(t, f, marks)
}

// markedModel has these marks in the place of reserved control tokens.
func markedModel(t *testing.T, f toolcall.Family, marks []string) *Model {
	t.Helper()
	file, err := os.Open(filepath.Join("..", "..", "..", "services", "tokenizer", "testdata",
		"tandem-tiny-tokenizer.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for i, mark := range marks {
		quoted, _ := json.Marshal(mark)
		old := "\"<|reserved_" + string(rune('0'+i)) + "|>\""
		if !strings.Contains(text, old) {
			t.Fatalf("the tokenizer has no %s", old)
		}
		text = strings.ReplaceAll(text, old, string(quoted))
	}
	m := bare(t, f)
	if m.Tokenizer, err = tokenizer.FromJSON([]byte(text)); err != nil {
		t.Fatal(err)
	}
	m.useFamily()
	return m
}

// output runs an answer through an emitter as a generation does.
func output(t *testing.T, m *Model, r *Rendered, answer string) (reasoning, content string, calls []*toolcall.Call) {
	t.Helper()
	set := &toolcall.Set{}
	if err := set.Add(toolcall.Tool{Name: "f", Schema: []byte(`{"properties":{"a":{"type":"string"}}}`)},
		nil); err != nil {
		t.Fatal(err)
	}
	e := emit.New(emit.Config{
		Tokenizer: m.Tokenizer, ThinkOpen: m.ThinkOpen, ThinkClose: m.ThinkClose, ThinkLabel: m.ThinkLabel,
		Thinking: r.Thinking, Literal: m.Markup,
		Tools: toolcall.NewParser(toolcall.Config{Set: set, Family: m.Family, NewID: func() string { return "id" }}),
	})
	take := func() {
		for _, ev := range e.Take() {
			switch ev.Kind {
			case emit.Reasoning:
				reasoning += string(ev.Text)
			case emit.Content:
				content += string(ev.Text)
			}
		}
	}
	for _, id := range m.Tokenizer.Encode(answer, tokenizer.Options{ParseSpecial: true}) {
		e.Push(emit.Entry{Candidate: emit.Candidate{ID: id}})
		take()
	}
	e.Finish(false)
	take()
	return reasoning, content, e.Calls()
}

// TestReasoningInEveryFamily: no byte of the reasoning is content and no byte of the content is reasoning, with
// thinking on and off, and calls are found after it.
func TestReasoningInEveryFamily(t *testing.T) {
	for _, tt := range []struct {
		name         string
		family       toolcall.Family
		on, off      string // answers
		inside       bool   // with thinking on, the prompt ends inside reasoning
		call, suffix string
	}{
		{"qwen", toolcall.QwenFamily, "why\n</think>\n\nBecause.", "Because.", true,
			"<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>",
			"<|im_start|>assistant\n<think>\n\n</think>\n\n"},
		{"gemma", toolcall.GemmaFamily, "<|channel>thought\nwhy\n<channel|>Because.", "Because.", false,
			`<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>`, "<|turn>model\n<|channel>thought\n<channel|>"},
		{"gemma without the label", toolcall.GemmaFamily, "<|channel>why\n<channel|>Because.", "Because.", false,
			`<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>`, "<|turn>model\n<|channel>thought\n<channel|>"},
		{"laguna", toolcall.LagunaFamily, "why</think>\nBecause.", "Because.", true,
			"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>", "<assistant>\n</think>"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := familyModel(t, tt.family)
			conv := &chat.Conversation{Messages: []chat.Message{{Role: chat.RoleUser, Content: "Why?"}}}
			r, err := m.Render(conv)
			if err != nil {
				t.Fatal(err)
			}
			if r.Thinking || !strings.HasSuffix(r.Text(), tt.suffix) {
				t.Errorf("thinking off: inside %v, prompt %q", r.Thinking, r.Text())
			}
			reasoning, content, calls := output(t, m, r, tt.off+tt.call)
			if reasoning != "" || content != "Because." || len(calls) != 1 || calls[0].Arguments != `{"a": "x"}` {
				t.Errorf("thinking off: reasoning %q, content %q, calls %v", reasoning, content, calls)
			}
			conv.Thinking = true
			if r, err = m.Render(conv); err != nil {
				t.Fatal(err)
			}
			if r.Thinking != tt.inside {
				t.Errorf("thinking on: inside %v, prompt %q", r.Thinking, r.Text())
			}
			reasoning, content, calls = output(t, m, r, tt.on+tt.call)
			if reasoning != "why" || content != "Because." || len(calls) != 1 || calls[0].Arguments != `{"a": "x"}` {
				t.Errorf("thinking on: reasoning %q, content %q, calls %v", reasoning, content, calls)
			}
		})
	}
}

// TestDeepSeekMarks: the marks of DeepSeek's calls are control tokens in the vocabularies of its distillations, whose
// family is another's.
func TestDeepSeekMarks(t *testing.T) {
	m := markedModel(t, toolcall.QwenFamily, toolcall.DeepSeekMarks)
	if len(m.Markup) != len(toolcall.DeepSeekMarks) {
		t.Fatalf("marks %v", m.Markup)
	}
	marks := toolcall.DeepSeekMarks
	_, content, calls := output(t, m, &Rendered{}, "ok"+marks[0]+marks[2]+"function"+marks[4]+
		"f\n```json\n{\"a\": \"x\"}\n```"+marks[3]+marks[1])
	if content != "ok" || len(calls) != 1 || calls[0].Arguments != `{"a": "x"}` {
		t.Errorf("content %q, calls %+v", content, calls)
	}
}
