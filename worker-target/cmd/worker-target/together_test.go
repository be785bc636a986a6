package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/grammar"
)

// TestSlowTrioTogether runs 32 requests of the demonstration models at a time, of mixed lengths, modes, seeds, keys and
// grammars: every one gives the tokens that it gives alone. The gap is set so short that pieces of prompts are cut.
func TestSlowTrioTogether(t *testing.T) {
	const requests = 32
	in, cases := trio(t)
	dir := t.TempDir()
	start(t, in("bin", "worker-draft"), filepath.Join(dir, "d"), "--model", in("models", "tandem-tiny-draft-q8_0.gguf"),
		"--cache-dir", filepath.Join(dir, "cd"), "--lanes", fmt.Sprint(requests), "--max-ctx", "4096")
	start(t, in("bin", "worker-target"), filepath.Join(dir, "t"),
		"--model", in("models", "tandem-tiny-target-q4_k_m.gguf"),
		"--cache-dir", filepath.Join(dir, "ct"), "--draft-address", "unix://"+filepath.Join(dir, "d"),
		"--lanes", fmt.Sprint(requests), "--max-ctx", "4096", "--max-token-gap-ms", "20")
	client := dialTrio(t, dir, 5*patience)
	client.awaitDraft(t, cases[0].IDs)
	messages := make([]*tandemv1.DecodeRequest, requests)
	for i := range messages {
		messages[i] = mixed(t, cases, i)
	}
	alone := make([][]int32, requests)
	for i, m := range messages {
		tokens, _, err := client.try(t, m)
		if err != nil {
			t.Fatalf("request %d alone: %v", i, err)
		}
		alone[i] = tokens
	}
	var wait sync.WaitGroup
	for i, m := range messages {
		wait.Go(func() {
			tokens, _, err := client.try(t, m)
			if err != nil {
				t.Errorf("request %d: %v", i, err)
			} else if !slices.Equal(tokens, alone[i]) {
				t.Errorf("request %d: %v, alone %v", i, tokens, alone[i])
			}
		})
	}
	wait.Wait()
}

// mixed is request i of a mix.
func mixed(t *testing.T, cases []goldenCase, i int) *tandemv1.DecodeRequest {
	t.Helper()
	var prompt []int32
	for k := i; len(prompt) < []int{1, 200, 700, 1500}[i%4]; k++ {
		prompt = append(prompt, cases[k%len(cases)].IDs...)
	}
	temperature, seed := []float64{0, 0.8}[i/4%2], int64(i)
	m := &tandemv1.DecodeRequest{
		RequestId: fmt.Sprint("mixed ", i), PromptTokens: prompt, MaxTokens: int32(40 + 2*i), TopLogprobs: -1,
		Sampling:    &tandemv1.Sampling{Temperature: &temperature, Seed: &seed},
		Speculation: trioModes[i%len(trioModes)].spec, FairnessKey: uint64(i % 3), Priority: int32(i % 10),
	}
	if i%3 == 0 {
		w := grammar.NewWriter()
		rule, err := w.Schema([]byte(trioSchemas[i/3%len(trioSchemas)]))
		if err != nil {
			t.Fatal(err)
		}
		w.Define("root", rule)
		m.Guide = &tandemv1.Guide{Grammar: w.Text()}
	}
	return m
}
