package e2e

import (
	"crypto/rand"
	"encoding/json"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/tests/client"
)

// cachedAnswer is an answer with what usage says about the prompt.
type cachedAnswer struct {
	text                        string
	prompt, cached              int
	restoreMS, firstMS, drafted float64
}

// askCached asks over the chat API.
func askCached(t *testing.T, c *client.Client, messages []any, more map[string]any) cachedAnswer {
	t.Helper()
	body := map[string]any{"messages": messages, "max_tokens": 40, "temperature": 0, "enable_thinking": false,
		"speculation": map[string]any{"mode": "chain"}}
	for name, v := range more {
		body[name] = v
	}
	raw, err := c.Post(t.Context(), "/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Choices []struct{ Message struct{ Content string } }
		Usage   struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
			Timings struct {
				Restore float64 `json:"restore_ms"`
				TTFT    float64 `json:"ttft_ms"`
				Drafted float64 `json:"drafted_tokens"`
			}
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatal(err)
	}
	return cachedAnswer{text: v.Choices[0].Message.Content, prompt: v.Usage.Prompt, cached: v.Usage.Details.Cached,
		restoreMS: v.Usage.Timings.Restore, firstMS: v.Usage.Timings.TTFT, drafted: v.Usage.Timings.Drafted}
}

// TestPrefixCache: over HTTP the next turn reads what is new and says so, and its text is that of a prompt that was
// read whole.
func TestPrefixCache(t *testing.T) {
	_, c := demo(t)
	say := func(role, text string) any { return map[string]any{"role": role, "content": text} }
	// Nobody else's, whatever ran on this cluster before.
	system := "Session " + rand.Text() + ". " +
		strings.Repeat("You answer questions about the Go language. Be brief and exact. ", 40)
	list := []any{
		say("system", system),
		say("user", "What is a goroutine? "+strings.Repeat("Think of channels, too. ", 20)),
	}
	off := map[string]any{"cache_prompt": false}
	for turn, question := range []string{"Write a function that adds two numbers.", "And one that multiplies them.", ""} {
		cold := askCached(t, c, list, off)
		first := askCached(t, c, list, nil)
		again := askCached(t, c, list, nil)
		t.Logf("turn %d: %d tokens; cold %.0f ms, first %d cached, %.0f ms, again %d cached, %.0f ms, restored in %.1f ms",
			turn, cold.prompt, cold.firstMS, first.cached, first.firstMS, again.cached, again.firstMS, again.restoreMS)
		if cold.text == "" || first.text != cold.text || again.text != cold.text {
			t.Errorf("turn %d: cold %q, first %q, again %q", turn, cold.text, first.text, again.text)
		}
		if cold.cached != 0 || (first.cached > 0) != (turn > 0) || again.cached < first.prompt-100 {
			t.Errorf("turn %d: %d, %d and %d of %d tokens are cached", turn, cold.cached, first.cached, again.cached,
				first.prompt)
		}
		if turn > 0 && first.drafted == 0 {
			t.Errorf("turn %d: nothing was drafted after a hit", turn)
		}
		list = append(list, say("assistant", first.text), say("user", question))
	}
	// The Messages API splits the prompt.
	raw, err := c.Post(t.Context(), "/v1/messages", map[string]any{
		"max_tokens": 10, "temperature": 0, "messages": []any{say("user", "What is a goroutine, and what is a channel?")},
		"system": system,
	})
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Usage struct {
			Input   int `json:"input_tokens"`
			Read    int `json:"cache_read_input_tokens"`
			Created int `json:"cache_creation_input_tokens"`
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil || v.Usage.Read < 200 || v.Usage.Input < 1 {
		t.Errorf("%v, %+v", err, v.Usage)
	}
}
