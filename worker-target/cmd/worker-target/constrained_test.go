package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/grammar"
	"github.com/tandem-inference/tandem/services/grammar/grammartest"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// trioSchemas are of the kinds that clients send.
var trioSchemas = []string{
	`{"type":"object","properties":{"name":{"type":"string","maxLength":40},"language":{"enum":["go","c","python"]},"lines":{"type":"integer","minimum":1,"maximum":500}},"required":["name","language","lines"],"additionalProperties":false}`,
	`{"type":"object","properties":{"answer":{"type":"string","minLength":5,"maxLength":80},"confidence":{"type":"number","minimum":0,"maximum":1},"tags":{"type":"array","items":{"type":"string","maxLength":12},"minItems":1,"maxItems":3}},"required":["answer","confidence","tags"]}`,
	`{"type":"array","items":{"$ref":"#/$defs/step"},"minItems":1,"maxItems":3,"$defs":{"step":{"type":"object","properties":{"title":{"type":"string","maxLength":20},"done":{"type":"boolean"}},"required":["title","done"]}}}`,
}

// TestSlowTrioConstrained runs the demonstration models under schemas: every mode gives the tokens of plain decoding,
// every text is valid for an independent validator.
func TestSlowTrioConstrained(t *testing.T) {
	in, cases := trio(t)
	dir, err := os.MkdirTemp("", "trio")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	model := in("models", "tandem-tiny-target-q4_k_m.gguf")
	file, err := gguf.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	words, err := tokenizer.FromGGUF(file)
	if err != nil {
		t.Fatal(err)
	}
	start(t, in("bin", "worker-draft"), filepath.Join(dir, "d"), "--model", in("models", "tandem-tiny-draft-q8_0.gguf"),
		"--cache-dir", filepath.Join(dir, "cd"))
	start(t, in("bin", "worker-target"), filepath.Join(dir, "t"), "--model", model, "--cache-dir",
		filepath.Join(dir, "ct"), "--draft-address", "unix://"+filepath.Join(dir, "d"))
	client := dialTrio(t, dir, time.Minute)
	client.awaitDraft(t, cases[0].IDs)
	for i, schema := range trioSchemas {
		w := grammar.NewWriter()
		rule, err := w.Schema([]byte(schema))
		if err != nil {
			t.Fatal(err)
		}
		w.Define("root", rule)
		judge := grammartest.NewJudge(t, schema)
		for n, c := range cases[:min(6, len(cases))] {
			for k, temperature := range []float64{0, 0.8} {
				seed := int64(n)
				var plain []int32
				for _, mode := range modesInTurn(i + n + k) {
					request := &tandemv1.DecodeRequest{
						RequestId: fmt.Sprint("constrained", i, n), PromptTokens: c.IDs, MaxTokens: 400, TopLogprobs: -1,
						StopTokens: words.StopTokens(), Sampling: &tandemv1.Sampling{Temperature: &temperature, Seed: &seed},
						Speculation: mode.spec, Guide: &tandemv1.Guide{Grammar: w.Text()},
					}
					tokens, end := client.run(t, request)
					if mode.name == "plain" {
						plain = tokens
						text := words.Decode(tokens, false)
						if end.Reason != tandemv1.FinishReason_FINISH_REASON_STOP {
							t.Errorf("schema %d, prompt %d: no end after %s", i, n, text)
						} else if err := judge.Validate(text); err != nil {
							t.Errorf("schema %d, prompt %d: %s: %v", i, n, text, err)
						}
						if n == 0 {
							t.Log(text)
						}
					} else if !slices.Equal(tokens, plain) {
						t.Errorf("%s, schema %d, prompt %d: %s, plain %s", mode.name, i, n, words.Decode(tokens, false),
							words.Decode(plain, false))
					}
				}
			}
		}
	}
}
