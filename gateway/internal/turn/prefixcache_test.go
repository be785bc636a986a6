package turn_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// cacheRig is a gateway with a target that has restored 7 tokens of every prompt and saved 3 more.
func cacheRig(t *testing.T, change func(c *app.Config)) (*rig.Rig, *gatewaytest.Worker) {
	t.Helper()
	r := rig.Start(t, change)
	script := gatewaytest.Script{
		Tokens: r.Tok.Encode("Sure.", tokenizer.Options{}), Stop: r.Tok.StopTokens()[0], Cached: 7, Saved: 3,
	}
	return r, r.Target(gatewaytest.WorkerOptions{Decode: script.Run})
}

// TestCacheUsage: every dialect says what of the prompt came from the prefix cache and what went there.
func TestCacheUsage(t *testing.T) {
	r, _ := cacheRig(t, nil)
	const turns = `"messages":[{"role":"user","content":"Please say something nice to me."}]`
	for _, c := range []struct {
		name, path, body string
		prompt           []any // where the rest of the prompt is counted
		cached, saved    []any
		rest             float64 // of the prompt not in prompt
	}{
		{"chat", "/v1/chat/completions", `{` + turns + `}`, []any{"usage", "prompt_tokens"},
			[]any{"usage", "prompt_tokens_details", "cached_tokens"}, nil, 0},
		{"completions", "/v1/completions", `{"prompt":"Please say something nice to me. Please do."}`,
			[]any{"usage", "prompt_tokens"}, []any{"usage", "prompt_tokens_details", "cached_tokens"}, nil, 0},
		{"responses", "/v1/responses", `{"input":"Please say something nice to me."}`, []any{"usage", "input_tokens"},
			[]any{"usage", "input_tokens_details", "cached_tokens"},
			[]any{"usage", "input_tokens_details", "cache_write_tokens"}, 0},
		{"messages", "/v1/messages", `{"max_tokens":9,` + turns + `}`, []any{"usage", "input_tokens"},
			[]any{"usage", "cache_read_input_tokens"}, []any{"usage", "cache_creation_input_tokens"}, 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			whole := map[bool]float64{}
			for _, off := range []bool{false, true} {
				body := c.body
				cached, saved, rest := 7.0, 3.0, c.rest
				if off {
					body = strings.Replace(body, "{", `{"cache_prompt":false,`, 1)
					cached, saved, rest = 0, 0, 0
				}
				v := r.Do("POST", c.path, body).JSON(t)
				if got := rig.At(v, c.cached...); got != cached {
					t.Errorf("cache_prompt off %v: %v are cached, want %v: %v", off, got, cached, rig.At(v, "usage"))
				}
				if c.saved != nil && rig.At(v, c.saved...) != saved {
					t.Errorf("cache_prompt off %v: %v are saved, want %v", off, rig.At(v, c.saved...), saved)
				}
				prompt, _ := rig.At(v, c.prompt...).(float64)
				whole[off] = prompt + rest
			}
			if whole[true] != whole[false] || whole[true] < 10 {
				t.Errorf("the prompt has %v tokens", whole)
			}
		})
	}
	// Of n choices the prompt counts once.
	v := r.Do("POST", "/v1/chat/completions", `{"n":3,`+turns+`}`).JSON(t)
	if got := rig.At(v, "usage", "prompt_tokens_details", "cached_tokens"); got != 7.0 {
		t.Errorf("of three choices %v are cached", got)
	}
}

// TestCacheUse: workers are told who may share a prompt's states and where the client marks its prompt.
func TestCacheUse(t *testing.T) {
	last := func(w *gatewaytest.Worker) *tandemv1.DecodeRequest {
		all := w.Requests()
		return all[len(all)-1]
	}
	const mark = `"cache_control":{"type":"ephemeral"}`
	r, w := cacheRig(t, nil)
	body := func(first, second string) string {
		return fmt.Sprintf(`{"max_tokens":9,"system":[{"type":"text","text":"Be nice.",%s}],"messages":[`+
			`{"role":"user","content":[{"type":"text","text":"Tell me about Go."%s}]},{"role":"assistant","content":"It is nice."},`+
			`{"role":"user","content":[{"type":"text","text":"And "},{"type":"text","text":"more?"%s}]}]}`, mark, first, second)
	}
	r.Do("POST", "/v1/messages", body("", ""))
	if u := last(w).GetCache(); u == nil || u.Off || u.Isolation != "" || len(u.Hints) != 0 {
		t.Errorf("a request without marks: %v", u)
	}
	for _, v := range []struct {
		path, body string
		ends       []string // texts that end before the hints
	}{
		{"/v1/messages", body(","+mark, ""), []string{"Tell me about Go."}},
		{"/v1/messages", body("", ","+mark), []string{"more?"}},
		{"/v1/messages", body(","+mark, ","+mark), []string{"Tell me about Go.", "more?"}},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"Tell me about Go.",` + mark +
			`}]},{"role":"assistant","content":"It is nice."},{"role":"user","content":"And more?"}]}`,
			[]string{"Tell me about Go."}},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"Tell me about Go.",` + mark +
			`},{"role":"assistant","content":"It is nice.",` + mark + `},{"role":"user","content":"And more?"}]}`,
			[]string{"Tell me about Go.", "It is nice."}},
	} {
		r.Do("POST", v.path, v.body)
		req := last(w)
		hints := req.GetCache().GetHints()
		if len(hints) != len(v.ends) {
			t.Errorf("%s: hints %v, want one after each of %q", v.body, hints, v.ends)
			continue
		}
		for i, end := range v.ends {
			// A hint lies between the end of its message and the text of the next: at most a header after it.
			before := r.Tok.Decode(req.PromptTokens[:hints[i]], true)
			if rest := len(before) - strings.LastIndex(before, end) - len(end); !strings.Contains(before, end) || rest > 70 {
				t.Errorf("hint %d is %d, after %q", i, hints[i], before)
			}
		}
	}
	r.Do("POST", "/v1/messages", strings.Replace(body(","+mark, ""), "{", `{"cache_prompt":false,`, 1))
	if u := last(w).GetCache(); !u.GetOff() || len(u.Hints) != 0 {
		t.Errorf("off: %v", u)
	}
}

// TestCacheIsolation: with --cache-isolation key the states of one key's prompts are not another's.
func TestCacheIsolation(t *testing.T) {
	for _, mode := range []string{"shared", "key"} {
		r, w := cacheRig(t, func(c *app.Config) {
			c.CacheIsolation = mode
			c.APIKey = append(c.APIKey, "one", "two")
		})
		var scopes []string
		for _, key := range []string{"one", "two", "one"} {
			r.Do("POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"Hi."}]}`,
				"Authorization", "Bearer "+key)
			all := w.Requests()
			scopes = append(scopes, all[len(all)-1].GetCache().GetIsolation())
		}
		apart := scopes[0] != scopes[1] && scopes[0] != ""
		if scopes[0] != scopes[2] || apart != (mode == "key") || strings.Contains(scopes[0], "one") {
			t.Errorf("%s: %q", mode, scopes)
		}
	}
}
