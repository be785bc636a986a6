package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"github.com/tandem-inference/tandem/services/workernode"
)

// TestSlowNeedles scores the needle prompts with the demonstration scorer in a process of its own: the sentence that holds
// the answer is kept, by score or by anchor, whichever rows ask.
func TestSlowNeedles(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	in := func(path ...string) string { return filepath.Join(append([]string{root}, path...)...) }
	for _, path := range []string{in("bin", "worker-prefill"), in("bin", "tandem-engine"), in("bin", "libtandem_cpu.so")} {
		if _, err := os.Stat(path); err != nil {
			t.Skip("needs the programs in bin/: make build")
		}
	}
	if testing.Short() {
		t.Skip("starts processes")
	}
	data, err := os.ReadFile(in("tests", "testdata", "golden", "tandem-tiny-needle.json"))
	if err != nil {
		t.Skip("needs the golden file: ", err)
	}
	var cases []struct {
		Tokens         int
		Prompt, Answer string
		Keep           float64
	}
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	model := in("models", "tandem-tiny-prefill-q8_0.gguf")
	file, err := gguf.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	tok, err := tokenizer.FromGGUF(file)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "needle") // short: socket paths are limited to some hundred bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	address := "unix://" + filepath.Join(dir, "p")
	cmd := exec.Command(in("bin", "worker-prefill"), "--model", model, "--listen", address, "--max-ctx", "20000")
	cmd.Stderr = io.Discard
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("worker ended with %v", err)
		}
	}()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		health := workernode.HealthCmd{Address: address, Timeout: time.Second}
		if err = health.Run(); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	conn, err := workernode.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := tandemv1.NewPrefillServiceClient(conn)

	found := map[string]int{}
	tried := 0
	begin := time.Now()
	for _, c := range cases {
		if c.Tokens > 4500 || time.Since(begin) > 20*time.Second {
			continue
		}
		// Head with the document, the question, the end of the template: tokens of each part by themselves.
		end := strings.Index(c.Prompt, "<|im_end|>")
		question := strings.LastIndex(c.Prompt[:end], "\n\n")
		options := tokenizer.Options{ParseSpecial: true}
		ids := tok.Encode(c.Prompt[:question], options)
		document := int32(len(ids))
		ids = append(ids, tok.Encode(c.Prompt[question:end], options)...)
		asked := int32(len(ids))
		ids = append(ids, tok.Encode(c.Prompt[end:], options)...)
		tried++
		for name, query := range map[string]*tandemv1.Span{"question": {First: document, Last: asked}, "end of prompt": nil} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			reply, err := client.Compress(ctx, &tandemv1.CompressRequest{
				Tokens: ids, Query: query,
				Segments: []*tandemv1.Segment{{Span: &tandemv1.Span{First: 0, Last: document}, KeepRatio: min(1, max(0.02, c.Keep/4))}},
			})
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			for _, k := range reply.Segments[0].Kept {
				text.WriteString(tok.Decode(ids[k.First:k.Last], true))
			}
			if strings.Contains(text.String(), c.Answer) {
				found[name]++
			}
			if query != nil {
				t.Logf("%5d tokens: kept %d of %d bytes, %.0f ms", len(ids), text.Len(), question, reply.ScoreMs)
			}
		}
	}
	t.Logf("answers kept of %d: %v", tried, found)
	if found["question"] < tried*8/10 {
		t.Errorf("%d of %d answers kept", found["question"], tried)
	}
}
