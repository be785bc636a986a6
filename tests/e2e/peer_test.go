package e2e

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"testing"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// exactly asks over the chat API and returns the answer with its log-probabilities as they were sent, and how many
// prompt tokens came from the cache.
func exactly(t *testing.T, c *client.Client, messages []any, more map[string]any) (answer, text string, cached int) {
	t.Helper()
	body := map[string]any{"messages": messages, "max_tokens": 30, "temperature": 0, "enable_thinking": false,
		"logprobs": true, "top_logprobs": 4}
	maps.Copy(body, more)
	raw, err := c.Post(t.Context(), "/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Choices []struct {
			Message  struct{ Content string }
			Logprobs json.RawMessage
		}
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil || len(v.Choices) != 1 {
		t.Fatalf("%v: %s", err, raw)
	}
	text = v.Choices[0].Message.Content
	return text + string(v.Choices[0].Logprobs), text, v.Usage.Details.Cached
}

// TestStatesFromAnotherWorker: the next turn of a conversation that goes to another worker starts from the state that
// this one fetches from the first, with the text and the log-probabilities of a prompt that is read whole. Without
// --peer-fetch it is read whole.
func TestStatesFromAnotherWorker(t *testing.T) {
	for _, fetch := range []string{"on", "off"} {
		t.Run(fetch, func(t *testing.T) {
			registry := "unix://" + filepath.Join(t.TempDir(), "registry")
			// With equal loads the worker of the lowest name gets the request.
			cl := start(t, "--demo", "--registry-listen", registry, "--route", "load", "--read-ahead", "off",
				"--peer-fetch", fetch)
			c := client.New(cl.HTTP)
			list := conversation()
			_, text, _ := exactly(t, c, list, nil)
			list = next(list, text)
			joined, err := cluster.Join(registry, "another", "--peer-fetch", fetch)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				joined.Close()
				if t.Failed() {
					t.Logf("log of the second worker:\n%s", joined.Log())
				}
			})
			worker := func(id string) client.Worker {
				workers, err := c.Workers(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, w := range workers {
					if w.ID == id {
						return w
					}
				}
				return client.Worker{}
			}
			eventually(t, "the second worker is ready", func() bool { return worker("another").State == "ready" })
			hit, _, cached := exactly(t, c, list, nil)
			cold, _, none := exactly(t, c, list, map[string]any{"cache_prompt": false})
			if hit != cold || none != 0 {
				t.Errorf("with %d cached tokens\n%s\ncold\n%s", cached, hit, cold)
			}
			if fetch == "off" {
				if cached != 0 {
					t.Errorf("%d tokens are cached", cached)
				}
				return
			}
			if cached < 600 {
				t.Errorf("%d tokens are cached", cached)
			}
			eventually(t, "heartbeats tell of the fetch", func() bool {
				to, from := worker("another").Counters, worker("worker-target").Counters
				return to["peer_fetches"] == 1 && to["peer_fetched_bytes"] > 0 && from["peer_sends"] == 1
			})
		})
	}
}
