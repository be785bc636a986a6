package anthropic

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/eventgen"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"pgregory.net/rapid"
)

func newTestAnswer(total bool) *answer {
	return &answer{
		output:  output{sign: func(text []byte) string { return "signed:" + string(text) }},
		message: message{ID: "msg_1", Type: "message", Role: "assistant", Model: "m"},
		total:   total,
	}
}

// streamed runs an output as a stream; end closes it.
func streamed(t testing.TB, a *answer, out *eventgen.Output, end func(s *stream, dst []byte) []byte) []byte {
	t.Helper()
	rec := httptest.NewRecorder()
	w := sse.New(rec, sse.Config{})
	a.events = true
	s := &stream{answer: a, w: w, requestID: "req-1", prompt: out.Usage.PromptTokens}
	if err := out.Play(s); err != nil {
		t.Fatal(err)
	}
	if err := w.Send(func(dst []byte) []byte { return end(s, dst) }); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return rec.Body.Bytes()
}

func TestStreamEqualsWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		out := eventgen.Draw(rt)
		whole := newTestAnswer(false)
		if err := out.Play(whole); err != nil {
			rt.Fatal(err)
		}
		want := map[string]any{}
		if err := json.Unmarshal(appendJSON(nil, whole.complete(&out.Usage)), &want); err != nil {
			rt.Fatal(err)
		}
		body := streamed(t, newTestAnswer(false), &out,
			func(s *stream, dst []byte) []byte { return s.End(s.Ping(dst), &out.Usage) })
		got, err := wirecheck.Messages(body)
		if err != nil {
			rt.Fatalf("%v\n%s", err, body)
		}
		if d := cmp.Diff(want, got.Message); d != "" {
			rt.Fatalf("stream differs from whole: %s", d)
		}
	})
}

func TestBlocks(t *testing.T) {
	call := &toolcall.Call{ID: "toolu_1", Name: "f"}
	start := []emit.Event{{Kind: emit.Content, Text: []byte("half")}, {Kind: emit.ToolStart, Call: call},
		{Kind: emit.ToolArgs, Call: call, Text: []byte(`{"a":`)}}
	whole := append(start[:len(start):len(start)], emit.Event{Kind: emit.ToolArgs, Call: call, Text: []byte("1}")},
		emit.Event{Kind: emit.ToolEnd, Call: call})
	for name, tt := range map[string]struct {
		events []emit.Event
		choice generate.Choice
		want   string
	}{
		"nothing": {nil, generate.Choice{Finish: generate.FinishStop}, `[{"type":"text","text":""}] end_turn`},
		"call": {whole, generate.Choice{Finish: generate.FinishToolCalls},
			`[{"type":"text","text":"half"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"a":1}}] tool_use`},
		"cut call": {start, generate.Choice{Finish: generate.FinishLength},
			`[{"type":"text","text":"half"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"a":null}}] max_tokens`},
		"only a cut call": {start[1:], generate.Choice{Finish: generate.FinishLength},
			`[{"type":"tool_use","id":"toolu_1","name":"f","input":{"a":null}}] max_tokens`},
		"call cut before its arguments": {start[1:2], generate.Choice{Finish: generate.FinishLength},
			`[{"type":"tool_use","id":"toolu_1","name":"f","input":{}}] max_tokens`},
		"stop string": {start[:1], generate.Choice{Finish: generate.FinishStop, StopString: "X"},
			`[{"type":"text","text":"half"}] stop_sequence`},
	} {
		t.Run(name, func(t *testing.T) {
			out := eventgen.Output{Steps: [][]emit.Event{tt.events}, Choice: tt.choice}
			a := newTestAnswer(false)
			if err := out.Play(a); err != nil {
				t.Fatal(err)
			}
			m := a.complete(&out.Usage)
			if got := string(appendJSON(nil, m.Content)) + " " + *m.StopReason; got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			body := streamed(t, newTestAnswer(false), &out, func(s *stream, dst []byte) []byte { return s.End(dst, &out.Usage) })
			got, err := wirecheck.Messages(body)
			if err != nil {
				t.Fatalf("%v\n%s", err, body)
			}
			var want map[string]any
			if err := json.Unmarshal(appendJSON(nil, m), &want); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got.Message); d != "" {
				t.Errorf("stream differs from whole: %s", d)
			}
		})
	}
}

func TestUsageAddsUpToThePrompt(t *testing.T) {
	u := &generate.Usage{PromptTokens: 100, CachedTokens: 60, SavedTokens: 30, CompletionTokens: 7, ReasoningTokens: 2}
	if got := newUsage(u, false).tokens; got != (tokens{10, 30, 60, 7, outputDetails{2}}) {
		t.Errorf("usage %+v", got)
	}
	if got := newUsage(u, true).tokens; got != (tokens{100, 30, 60, 7, outputDetails{2}}) {
		t.Errorf("usage with total input %+v", got)
	}
}

func TestErrorEvent(t *testing.T) {
	out := eventgen.Output{Steps: [][]emit.Event{{{Kind: emit.Content, Text: []byte("half")}}}}
	body := streamed(t, newTestAnswer(false), &out, func(s *stream, dst []byte) []byte {
		return s.Fail(dst, reqerr.NoWorker("none"))
	})
	got, err := wirecheck.Messages(body)
	if err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	if got.Error["type"] != "overloaded_error" {
		t.Errorf("error %v", got.Error)
	}
}

// The checker must notice an event that is missing or twice; otherwise passing it means nothing.
func TestCheckerNoticesEveryMissingEvent(t *testing.T) {
	call := &toolcall.Call{ID: "toolu_1", Name: "f"}
	out := eventgen.Output{Steps: [][]emit.Event{{
		{Kind: emit.Reasoning, Text: []byte("why")}, {Kind: emit.Content, Text: []byte("text")},
		{Kind: emit.ToolStart, Call: call}, {Kind: emit.ToolArgs, Call: call, Text: []byte(`{}`)},
		{Kind: emit.ToolEnd, Call: call},
	}}, Choice: generate.Choice{Finish: generate.FinishToolCalls}}
	a := newTestAnswer(false)
	if err := out.Play(a); err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if err := json.Unmarshal(appendJSON(nil, a.complete(&out.Usage)), &want); err != nil {
		t.Fatal(err)
	}
	body := string(streamed(t, newTestAnswer(false), &out,
		func(s *stream, dst []byte) []byte { return s.End(dst, &out.Usage) }))
	events := strings.SplitAfter(body, "\n\n")
	events = events[:len(events)-1]
	for i, e := range events {
		if strings.HasPrefix(e, "event: ping") {
			continue
		}
		for name, forged := range map[string]string{
			"without": strings.Join(events[:i], "") + strings.Join(events[i+1:], ""),
			"twice":   strings.Join(events[:i+1], "") + strings.Join(events[i:], ""),
		} {
			// Text that is missing or twice shows in the message.
			if got, err := wirecheck.Messages([]byte(forged)); err == nil && cmp.Equal(want, got.Message) {
				t.Errorf("%s %s passes", name, e)
			}
		}
	}
}
