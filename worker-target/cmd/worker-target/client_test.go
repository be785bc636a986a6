package main

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/workernode"
)

// trioClient asks the target of a trio of processes.
type trioClient struct {
	tandemv1.TargetServiceClient
	timeout time.Duration // of a request
}

// dialTrio connects to the target in a folder.
func dialTrio(t *testing.T, dir string, timeout time.Duration) *trioClient {
	t.Helper()
	conn, err := workernode.Dial("unix://" + filepath.Join(dir, "t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &trioClient{tandemv1.NewTargetServiceClient(conn), timeout}
}

// try runs a request. on is called after every event, with the number of tokens so far.
func (c *trioClient) try(t *testing.T, m *tandemv1.DecodeRequest, on ...func(total int)) (
	tokens []int32, end *tandemv1.Finished, err error,
) {
	ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
	defer cancel()
	stream, err := c.Decode(ctx, m)
	if err != nil {
		return nil, nil, err
	}
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return tokens, end, nil
		}
		if err != nil {
			return nil, nil, err
		}
		tokens = append(tokens, e.GetCommitted().GetTokens()...)
		for _, f := range on {
			f(len(tokens))
		}
		if f := e.GetFinished(); f != nil {
			end = f
		}
	}
}

// run is try for requests that must succeed.
func (c *trioClient) run(t *testing.T, m *tandemv1.DecodeRequest, on ...func(total int)) ([]int32, *tandemv1.Finished) {
	t.Helper()
	tokens, end, err := c.try(t, m, on...)
	if err != nil {
		t.Fatal(err)
	}
	return tokens, end
}

// awaitDraft waits until the engine is loaded and the draft, which takes the target's tables over the wire, proposes.
func (c *trioClient) awaitDraft(t *testing.T, prompt []int32) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		_, end, err := c.try(t, &tandemv1.DecodeRequest{
			PromptTokens: prompt, MaxTokens: 30, TopLogprobs: -1,
			Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_CHAIN},
		})
		if err == nil && end.Timings.AcceptedTokens > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the draft was not attached: %v, %v", end, err)
		}
	}
}
