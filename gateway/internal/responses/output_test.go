package responses

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/eventgen"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/wirecheck"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/seal"
	"github.com/tandem-inference/tandem/gateway/internal/sse"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"pgregory.net/rapid"
)

// newTestAnswer numbers its ids, so that two answers to the same output are equal.
func newTestAnswer(summary bool) *answer {
	n := 0
	return &answer{
		request: &request{object: &object{ID: "resp_1", Object: "response", Status: statusInProgress,
			Output: []any{}, Text: emptyList,
			ToolChoice: emptyList, Tools: emptyList, Metadata: emptyList, Instructions: emptyList}},
		output: output{outputOptions: outputOptions{summary: summary, newID: func(prefix string) string {
			n++
			return fmt.Sprint(prefix, n)
		}}},
	}
}

// streamed runs an output as a stream; end closes it.
func streamed(t testing.TB, a *answer, out *eventgen.Output, end func(s *stream, w *sse.Writer) error) []byte {
	t.Helper()
	rec := httptest.NewRecorder()
	w := sse.New(rec, sse.Config{})
	a.events = true
	s := &stream{answer: a, w: w, usage: func() *generate.Usage { return nil }, ended: func(*object) {}}
	if err := out.Play(s); err != nil {
		t.Fatal(err)
	}
	if err := end(s, w); err != nil {
		t.Fatal(err)
	}
	w.Close()
	return rec.Body.Bytes()
}

func TestStreamEqualsWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		out := eventgen.Draw(rt)
		summary := rapid.Bool().Draw(rt, "summary")
		whole := newTestAnswer(summary)
		if err := out.Play(whole); err != nil {
			rt.Fatal(err)
		}
		want := map[string]any{}
		if err := json.Unmarshal(appendJSON(nil, whole.complete(&out.Usage)), &want); err != nil {
			rt.Fatal(err)
		}
		body := streamed(t, newTestAnswer(summary), &out, func(s *stream, w *sse.Writer) error {
			return w.Send(func(dst []byte) []byte { return s.End(s.Ping(dst), &out.Usage) })
		})
		got, err := wirecheck.Responses(body)
		if err != nil {
			rt.Fatalf("%v\n%s", err, body)
		}
		delete(want, "completed_at")
		delete(got.Final, "completed_at")
		if d := cmp.Diff(want, got.Final); d != "" {
			rt.Fatalf("stream differs from whole: %s", d)
		}
	})
}

func TestItems(t *testing.T) {
	call := &toolcall.Call{ID: "call_1", Name: "files.read",
		Tool: &toolcall.Tool{Name: "files.read", Namespace: "files", Local: "read"}}
	events := []emit.Event{
		{Kind: emit.Reasoning, Text: []byte("why")}, {Kind: emit.Content, Text: []byte("Look: ")},
		{Kind: emit.ToolStart, Call: call}, {Kind: emit.ToolArgs, Call: call, Text: []byte(`{"a":1}`)},
		{Kind: emit.ToolEnd, Call: call},
	}
	a := newTestAnswer(true)
	a.sealed = seal.New(seal.NewKey(), "test")
	for i := range events {
		a.add(&events[i])
	}
	obj := a.final(statusCompleted, nil)
	text, ok := a.sealed.Open(obj.Output[0].(*reasoningItem).Encrypted)
	if !ok || text != "why" {
		t.Errorf("encrypted content opens as %q, %v", text, ok)
	}
	obj.Output[0].(*reasoningItem).Encrypted = "E"
	want := `[{"id":"rs_1","type":"reasoning","status":"completed","summary":[{"type":"summary_text","text":"why"}],"content":[{"type":"reasoning_text","text":"why"}],"encrypted_content":"E"},` +
		`{"id":"msg_2","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Look: ","annotations":[],"logprobs":[]}]},` +
		`{"id":"fc_3","type":"function_call","status":"completed","call_id":"call_1","name":"read","namespace":"files","arguments":"{\"a\":1}"}]`
	if d := cmp.Diff(want, string(appendJSON(nil, obj.Output))); d != "" {
		t.Error(d)
	}
	if obj.OutputText != "Look: " {
		t.Errorf("output_text %q", obj.OutputText)
	}
}

func TestEmptyAnswerHasAMessage(t *testing.T) {
	a := newTestAnswer(false)
	if out := a.final(statusCompleted, nil).Output; len(out) != 1 {
		t.Errorf("output %v, want one empty message", out)
	}
	a = newTestAnswer(false)
	if out := a.final(statusIncomplete, nil).Output; len(out) != 0 {
		t.Errorf("output %v of an answer that was cut off before its first token", out)
	}
}

func TestFailure(t *testing.T) {
	for name, tt := range map[string]struct {
		err            error
		terminal, code string
	}{
		"worker":    {reqerr.WorkerFailed(nil), "response.failed", "server_error"},
		"queue":     {reqerr.QueueFull(3), "response.failed", "rate_limit_exceeded"},
		"context":   {reqerr.ContextLength(9, 0, 8), "response.failed", "context_length_exceeded"},
		"cancelled": {errStopped, "response.incomplete", ""},
	} {
		t.Run(name, func(t *testing.T) {
			call := &toolcall.Call{ID: "call_1", Name: "f"}
			out := eventgen.Output{Steps: [][]emit.Event{{
				{Kind: emit.Content, Text: []byte("half")}, {Kind: emit.ToolStart, Call: call},
				{Kind: emit.ToolArgs, Call: call, Text: []byte(`{"a`)},
			}}}
			body := streamed(t, newTestAnswer(false), &out, func(s *stream, w *sse.Writer) error {
				return w.Send(func(dst []byte) []byte { return s.Fail(dst, tt.err) })
			})
			got, err := wirecheck.Responses(body)
			if err != nil {
				t.Fatalf("%v\n%s", err, body)
			}
			if got.Terminal != tt.terminal {
				t.Errorf("ends with %s", got.Terminal)
			}
			if e, _ := got.Final["error"].(map[string]any); tt.code != "" && e["code"] != tt.code {
				t.Errorf("error %v, want code %s", got.Final["error"], tt.code)
			}
			// The call that was cut off is there as far as it came.
			want := "[completed half incomplete {\"a]"
			if items := fmt.Sprint(states(got.Final["output"])); items != want {
				t.Errorf("items %s, want %s", items, want)
			}
			if tt.code == "" && got.Final["status"] != "cancelled" {
				t.Errorf("status %v", got.Final["status"])
			}
		})
	}
}

// states lists items as status and text.
func states(items any) (out []string) {
	for _, item := range items.([]any) {
		it := item.(map[string]any)
		text := ""
		for _, field := range []string{"arguments", "input"} {
			part, _ := it[field].(string)
			text += part
		}
		parts, _ := it["content"].([]any)
		for _, part := range parts {
			text += fmt.Sprint(part.(map[string]any)["text"])
		}
		out = append(out, fmt.Sprintf("%v %s", it["status"], text))
	}
	return out
}

// TestCutCalls: a call that the limit cuts off is in the answer as far as it came, whole and streamed, and a stream
// tells of no end of it.
func TestCutCalls(t *testing.T) {
	function, custom := &toolcall.Tool{Name: "read"}, &toolcall.Tool{Name: "patch", Kind: toolcall.Custom}
	for _, c := range []struct {
		tool       *toolcall.Tool
		args, want string
	}{
		{function, `{"path": "a.g`, `incomplete {"path": "a.g`},
		{function, "", "incomplete "},
		{custom, `{"input": "*** Begin\nx`, "incomplete *** Begin\nx"},
		{custom, `{"input": "half \ud83d`, "incomplete half \uFFFD"},
		{custom, `{"inp`, "incomplete "},
		{custom, `{"text": "y`, `incomplete {"text": "y`},
	} {
		call := &toolcall.Call{ID: "call_1", Name: c.tool.Name, Tool: c.tool}
		out := eventgen.Output{Choice: generate.Choice{Finish: generate.FinishLength}, Steps: [][]emit.Event{{
			{Kind: emit.Content, Text: []byte("I patch.")}, {Kind: emit.ToolStart, Call: call},
			{Kind: emit.ToolArgs, Call: call, Text: []byte(c.args)},
		}}}
		whole := newTestAnswer(false)
		if err := out.Play(whole); err != nil {
			t.Fatal(err)
		}
		var object map[string]any
		if err := json.Unmarshal(appendJSON(nil, whole.complete(&out.Usage)), &object); err != nil {
			t.Fatal(err)
		}
		body := streamed(t, newTestAnswer(false), &out, func(s *stream, w *sse.Writer) error {
			return w.Send(func(dst []byte) []byte { return s.End(dst, &out.Usage) })
		})
		got, err := wirecheck.Responses(body)
		if err != nil {
			t.Errorf("%s: %v\n%s", c.args, err, body)
			continue
		}
		for name, end := range map[string]map[string]any{"whole": object, "streamed": got.Final} {
			if d := cmp.Diff([]string{"completed I patch.", c.want}, states(end["output"])); d != "" {
				t.Errorf("%s, %s: %s", c.args, name, d)
			}
			if end["status"] != "incomplete" {
				t.Errorf("%s, %s: status %v", c.args, name, end["status"])
			}
		}
		if n := strings.Count(string(body), "event: response.output_item.done"); n != 1 {
			t.Errorf("%s: %d items are done, want the message alone", c.args, n)
		}
	}
}

// The checker must notice an event that is missing, twice or out of place; otherwise passing it means nothing.
func TestCheckerNoticesEveryMissingEvent(t *testing.T) {
	call := &toolcall.Call{ID: "call_1", Name: "f"}
	out := eventgen.Output{Steps: [][]emit.Event{{
		{Kind: emit.Reasoning, Text: []byte("why")}, {Kind: emit.Content, Text: []byte("text")},
		{Kind: emit.ToolStart, Call: call}, {Kind: emit.ToolArgs, Call: call, Text: []byte(`{}`)},
		{Kind: emit.ToolEnd, Call: call},
	}}, Choice: generate.Choice{Finish: generate.FinishToolCalls}}
	body := streamed(t, newTestAnswer(true), &out, func(s *stream, w *sse.Writer) error {
		return w.Send(func(dst []byte) []byte { return s.End(dst, &out.Usage) })
	})
	if _, err := wirecheck.Responses(body); err != nil {
		t.Fatal(err)
	}
	events := strings.SplitAfter(string(body), "\n\n")
	events = events[:len(events)-1]
	for i, e := range events {
		for name, forged := range map[string]string{
			"without": strings.Join(events[:i], "") + strings.Join(events[i+1:], ""),
			"twice":   strings.Join(events[:i+1], "") + strings.Join(events[i:], ""),
		} {
			// Numbers alone would give it away.
			if _, err := wirecheck.Responses(renumber(forged)); err == nil &&
				!strings.HasPrefix(e, "event: response.in_progress") {
				t.Errorf("%s %s passes", name, strings.SplitN(e, "\n", 2)[0])
			}
		}
	}
}

func renumber(body string) []byte {
	parts := strings.Split(body, `"sequence_number":`)
	for i := 1; i < len(parts); i++ {
		parts[i] = fmt.Sprint(i-1) + strings.TrimLeft(parts[i], "0123456789")
	}
	return []byte(strings.Join(parts, `"sequence_number":`))
}
