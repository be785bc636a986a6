package openai_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest"
	"github.com/tandem-inference/tandem/gateway/internal/gatewaytest/rig"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// TestCompletionsSpellPartsOfCharacters: tokens that are a part of a character have a spelling of their own, so the map
// of candidates holds as many entries as were asked for.
func TestCompletionsSpellPartsOfCharacters(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{})
	var parts []int32
	for id := int32(0); len(parts) < 5; id++ {
		if !utf8.Valid(r.Tok.TokenBytes(id)) {
			parts = append(parts, id)
		}
	}
	top := append(r.Encode("a"), parts...)
	answer := append(r.Encode("x"), r.Encode("日")...)
	w.SetDecode(func(req *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) error {
		c := &tandemv1.Committed{Tokens: answer}
		for range answer {
			p := &tandemv1.PositionLogprobs{Logprob: -1}
			for i, id := range top[:req.GetTopLogprobs()] {
				p.Top = append(p.Top, &tandemv1.TokenLogprob{Token: id, Logprob: -1 - float32(i)})
			}
			c.Logprobs = append(c.Logprobs, p)
		}
		for _, ev := range []*tandemv1.DecodeResponse{
			{Event: &tandemv1.DecodeResponse_Admitted{Admitted: &tandemv1.Admitted{WorkerId: "fake"}}},
			{Event: &tandemv1.DecodeResponse_Prefilled{Prefilled: &tandemv1.Prefilled{Tokens: 1}}},
			{Event: &tandemv1.DecodeResponse_Committed{Committed: c}},
			{Event: &tandemv1.DecodeResponse_Finished{Finished: &tandemv1.Finished{
				Reason: tandemv1.FinishReason_FINISH_REASON_LENGTH, Timings: &tandemv1.Timings{},
			}}},
		} {
			if err := stream.Send(ev); err != nil {
				return err
			}
		}
		return nil
	})
	spelled := func(id int32) string {
		b := r.Tok.TokenBytes(id)
		if utf8.Valid(b) {
			return string(b)
		}
		text := "bytes:"
		for _, c := range b {
			text += fmt.Sprintf(`\x%02X`, c)
		}
		return text
	}
	for n := range len(top) + 1 {
		v := r.Post("/v1/completions", fmt.Sprintf(`{"prompt":"a","max_tokens":9,"logprobs":%d}`, n)).JSON(t)
		tokens, _ := rig.At(v, "choices", 0, "logprobs", "tokens").([]any)
		maps, _ := rig.At(v, "choices", 0, "logprobs", "top_logprobs").([]any)
		if len(tokens) != len(answer) || len(maps) != len(answer) {
			t.Fatalf("logprobs %v", rig.At(v, "choices", 0, "logprobs"))
		}
		for i, id := range answer {
			if tokens[i] != spelled(id) {
				t.Errorf("token %d is %q, want %q", i, tokens[i], spelled(id))
			}
			want := map[string]any{}
			for k, id := range top[:n] {
				want[spelled(id)] = -1 - float64(k)
			}
			if d := cmp.Diff(want, maps[i]); d != "" || len(want) != n {
				t.Errorf("logprobs %d: %s", n, d)
			}
		}
	}
	// The text is not spelled.
	if v := r.Post("/v1/completions", `{"prompt":"a","max_tokens":9,"logprobs":1}`).JSON(t); rig.At(v,
		"choices", 0, "text") != "x日" {
		t.Errorf("text %v", v)
	}
}

// TestSuffix: the prompt that Qwen's vocabulary has for filling in the middle.
func TestSuffix(t *testing.T) {
	r := rig.Start(t, nil)
	w := r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("middle", 1)})
	mark := func(name string) int32 {
		id, ok := r.Tok.ID(name)
		if !ok {
			t.Fatalf("the vocabulary lacks %s", name)
		}
		return id
	}
	plain := func(text string) []int32 { return r.Tok.Encode(text, tokenizer.Options{}) }
	want := func(prefix, suffix []int32) []int32 {
		return slices.Concat([]int32{mark("<|fim_prefix|>")}, prefix, []int32{mark("<|fim_suffix|>")}, suffix,
			[]int32{mark("<|fim_middle|>")})
	}
	last := func() *tandemv1.DecodeRequest { all := w.Requests(); return all[len(all)-1] }
	// Marks in somebody's file are text.
	const code, rest = "func f() {\n\tx := \"<|fim_suffix|>\"\n", "\n}\n// <|im_end|>"
	for _, stream := range []string{"false", "true"} {
		a := r.Post("/v1/completions",
			string(rig.JSON(map[string]any{"prompt": code, "suffix": rest, "stream": stream == "true"})))
		if a.Status != 200 || !strings.Contains(string(a.Body), "iddle") {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		if d := cmp.Diff(want(plain(code), plain(rest)), last().GetPromptTokens()); d != "" {
			t.Error(d)
		}
	}
	for _, name := range []string{"<|endoftext|>", "<|fim_pad|>", "<|file_sep|>"} {
		if !slices.Contains(last().GetStopTokens(), mark(name)) {
			t.Errorf("%s does not end what is filled in", name)
		}
	}
	// Prompts in tokens, and each of several.
	r.Post("/v1/completions", `{"prompt":[[5,6],[7]],"suffix":"x"}`)
	all := w.Requests()
	got := [][]int32{all[len(all)-2].GetPromptTokens(), all[len(all)-1].GetPromptTokens()}
	slices.SortFunc(got, func(a, b []int32) int { return len(b) - len(a) })
	if d := cmp.Diff([][]int32{want([]int32{5, 6}, plain("x")), want([]int32{7}, plain("x"))}, got); d != "" {
		t.Error(d)
	}
	// Without a suffix the prompt is the caller's own template.
	r.Post("/v1/completions", `{"prompt":"<|im_end|>","suffix":""}`)
	if req := last(); !slices.Equal(req.GetPromptTokens(), r.Encode("<|im_end|>")) {
		t.Errorf("without a suffix: %v", req)
	}
	a := r.Post("/v1/completions", `{"prompt":"a","suffix":"b","echo":true}`)
	if a.Status != 400 || rig.At(a.JSON(t), "error", "param") != "suffix" {
		t.Errorf("echo: %d %s", a.Status, a.Body)
	}
}

// TestCompletionsTellOfClamping: a limit that the context lowered shows in whole answers and streams.
func TestCompletionsTellOfClamping(t *testing.T) {
	r := rig.Start(t, nil)
	r.Target(gatewaytest.WorkerOptions{Decode: r.Reply("ok", 1), MaxContext: 512})
	const body = `{"prompt":"Hello","max_tokens":100000`
	whole := rig.At(r.Post("/v1/completions", body+`}`).JSON(t), "choices", 0, "finish_details")
	if n, _ := rig.At(whole, "max_tokens_clamped").(float64); n != float64(512-len(r.Encode("Hello"))) {
		t.Errorf("whole: %v", whole)
	}
	var streamed any
	for _, ev := range rig.Events(t, r.Post("/v1/completions", body+`,"stream":true}`).Body) {
		if d := rig.At(ev, "choices", 0, "finish_details"); d != nil {
			streamed = d
		}
	}
	if d := cmp.Diff(whole, streamed); d != "" {
		t.Error(d)
	}
	if v := r.Post("/v1/completions", `{"prompt":"Hello","max_tokens":5}`).JSON(t); rig.At(v, "choices", 0,
		"finish_details") != nil {
		t.Errorf("nothing was clamped: %v", v)
	}
}
