package wirecheck

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// chunk is a chat chunk with one choice.
func chunk(delta, finish string) string {
	return `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":` + delta + `,"finish_reason":` + finish + `}]}` + "\n\n"
}

// transcript is a chat stream with reasoning, text and a call.
var transcript = []string{
	chunk(`{"role":"assistant","content":""}`, "null"),
	chunk(`{"reasoning_content":"why","reasoning":"why"}`, "null"),
	chunk(`{"content":"Look."}`, "null"),
	chunk(`{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]}`, "null"),
	chunk(`{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}`, "null"),
	chunk(`{}`, `"tool_calls"`),
	`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"total_tokens":3}}` + "\n\n",
	"data: [DONE]\n\n",
}

func TestChat(t *testing.T) {
	got, err := Chat([]byte(strings.Join(transcript, "")), 1)
	if err != nil {
		t.Fatal(err)
	}
	want := []Choice{{Content: "Look.", Reasoning: "why", Calls: []Call{{ID: "call_1", Name: "f", Arguments: "{}"}},
		Finish: "tool_calls"}}
	if d := cmp.Diff(want, got.Choices); d != "" {
		t.Error(d)
	}
}

// Every event counts: without it, or with it twice, the stream is refused or says something else. Only a second role
// chunk says nothing, as a keep-alive, and usage may be left out.
func TestChatNoticesEveryEvent(t *testing.T) {
	whole, err := Chat([]byte(strings.Join(transcript, "")), 1)
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range transcript {
		without := strings.Join(transcript[:i], "") + strings.Join(transcript[i+1:], "")
		if got, err := Chat([]byte(without), 1); err == nil && cmp.Equal(whole, got) {
			t.Errorf("nobody misses %s", e)
		}
		twice := strings.Join(transcript[:i+1], "") + strings.Join(transcript[i:], "")
		if got, err := Chat([]byte(twice), 1); err == nil && cmp.Equal(whole, got) && i > 0 {
			t.Errorf("nobody notices a second %s", e)
		}
	}
}

func TestParseRefusesBrokenFraming(t *testing.T) {
	for _, body := range []string{
		"data: {}\n", "data: {}", "{}\n\n", "event: a\n\n", "event: a\ndata: {}\ndata: {}\n\n", "data: {\n\n",
		": comment\n\n", "data: {}\n\n\ndata: {}\n\n", "id: 1\ndata: {}\n\n", "data:{}\n\n",
	} {
		if evs, err := Parse([]byte(body)); err == nil {
			t.Errorf("%q is taken as %v", body, evs)
		}
	}
	if evs, err := Parse(nil); err != nil || len(evs) != 0 {
		t.Errorf("an empty body gives %v, %v", evs, err)
	}
}
