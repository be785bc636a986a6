package e2e

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// scripted runs a cluster of the test's own whose engines follow rules.
func scripted(t *testing.T, rules []cluster.Rule, args ...string) (*cluster.Cluster, *client.Client) {
	t.Helper()
	needPrograms(t)
	options, err := cluster.Scripted(t.TempDir(), rules, args...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the cluster:\n%s", c.Log())
		}
		c.Close()
	})
	return c, client.New(c.HTTP)
}

// TestScripted: a whole cluster runs on the scripted engine, says what the rules say, at their pace and in steps of their sizes.
func TestScripted(t *testing.T) {
	_, c := scripted(t, []cluster.Rule{
		{Prompt: `capital of (\w+)`, Emit: "The capital of $1 is \u00dcberstadt \U0001F600.", Accept: []int{4}},
		{Prompt: "slowly", Emit: strings.Repeat("tick ", 20), TokensPerSecond: 40},
		{Prompt: "wait", Emit: "at last", FirstTokenMs: 400},
	}, "--lanes", "64")
	const want = "The capital of Ruritania is \u00dcberstadt \U0001F600."
	ask := client.Request{Messages: chat("What is the capital of Ruritania?"), MaxTokens: 200, Temperature: 1.2}
	for _, mode := range []string{"off", "chain", "tree"} {
		ask.Speculation = &client.Speculation{Mode: mode}
		whole, err := c.Do(t.Context(), ask)
		if err != nil {
			t.Fatal(err)
		}
		stream, err := c.Stream(t.Context(), ask, nil)
		if err != nil {
			t.Fatal(err)
		}
		if whole.Text != want || stream.Text != want || whole.Finish != "stop" || stream.Finish != "stop" {
			t.Errorf("%s: %q (%s), streamed %q (%s)", mode, whole.Text, whole.Finish, stream.Text, stream.Finish)
		}
		if length := stream.Usage.Timings.AcceptLength; mode == "chain" && math.Abs(length-4) > 0.6 {
			t.Errorf("rounds commit %.2f tokens, the rule says 4: %+v", length, stream.Usage)
		}
	}

	// Forty at a time, each at its own pace: what one waits for does not hold up another.
	const streams = 40
	results := make(chan error, streams)
	start := time.Now()
	for range streams {
		go func() {
			r, err := c.Stream(t.Context(), client.Request{Messages: chat("Count slowly."), MaxTokens: 100, Speculation: &client.Speculation{Mode: "off"}}, nil)
			if err == nil && r.Text != strings.Repeat("tick ", 20) {
				err = errors.New(r.Text)
			}
			results <- err
		}()
	}
	quick, err := c.Do(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	if quick.Total > time.Second {
		t.Errorf("an answer without a pace took %v beside slow ones", quick.Total)
	}
	for range streams {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	// Twenty tokens or more at 40 a second.
	if took := time.Since(start); took < 400*time.Millisecond || took > 8*time.Second {
		t.Errorf("%d paced streams took %v", streams, took)
	}

	waited, err := c.Stream(t.Context(), client.Request{Messages: chat("wait"), MaxTokens: 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if waited.Text != "at last" || waited.First < 400*time.Millisecond {
		t.Errorf("%q after %v", waited.Text, waited.First)
	}
	lost, err := c.Do(t.Context(), client.Request{Messages: chat("unheard of"), MaxTokens: 100})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(lost.Text, "None of the 3 rules of TANDEM_SCRIPT") {
		t.Errorf("no rule matches: %q", lost.Text)
	}
}

// TestScriptedFailover: the engine dies in the middle of an answer; the text goes on where it was, token by token.
func TestScriptedFailover(t *testing.T) {
	text := strings.Repeat("All is well. ", 20)
	c, api := scripted(t, []cluster.Rule{{Prompt: "report", Emit: text, TokensPerSecond: 60}})
	var once sync.Once
	r, err := api.Stream(t.Context(), client.Request{Messages: chat("report"), MaxTokens: 400}, func(string) {
		once.Do(func() {
			worker := c.Find("worker-target")
			for _, p := range c.Processes() {
				if p.Parent == worker && p.Name == "tandem-engine-scripted" {
					if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
						t.Error(err)
					}
				}
			}
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Text != text || r.Finish != "stop" {
		t.Errorf("%q (%s)", r.Text, r.Finish)
	}
}

// TestScriptedCancel: a client that leaves frees its lane, whatever the worker was doing for it.
func TestScriptedCancel(t *testing.T) {
	_, api := scripted(t, []cluster.Rule{
		{Prompt: "long prompt", Emit: "late", FirstTokenMs: 600_000},
		{Prompt: "slow answer", Emit: strings.Repeat("word ", 100), TokensPerSecond: 0.01},
		{Emit: "free"},
	}, "--lanes", "1")
	for _, prompt := range []string{"long prompt", "slow answer"} {
		ctx, leave := context.WithTimeout(t.Context(), 300*time.Millisecond)
		_, err := api.Stream(ctx, client.Request{Messages: chat(prompt), MaxTokens: 50}, nil)
		leave()
		if err == nil {
			t.Fatalf("%s: an answer came", prompt)
		}
		start := time.Now()
		r, err := api.Do(t.Context(), client.Request{Messages: chat("anything"), MaxTokens: 50})
		if err != nil || r.Text != "free" {
			t.Errorf("after %s: %q, %v", prompt, r.Text, err)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("after %s the lane was free only after %v", prompt, d)
		}
	}
}
