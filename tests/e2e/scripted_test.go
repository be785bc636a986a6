package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/testwait"
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
	c := launch(t, time.Minute, options)
	return c, client.New(c.HTTP)
}

// runningLine is that of a gauge of /metrics.
var runningLine = regexp.MustCompile(`(?m)^tandem_requests_running(?:\{.*\})? (\d+)$`)

// TestScripted: a whole cluster runs on the scripted engine, says what the rules say, at their pace and in steps of
// their sizes.
func TestScripted(t *testing.T) {
	_, c := scripted(t, []cluster.Rule{
		{Prompt: `capital of (\w+)`, Emit: "The capital of $1 is \u00dcberstadt \U0001F600.", Accept: []int{4}},
		{Prompt: "slowly", Emit: strings.Repeat("tick ", 20), TokensPerSecond: 40},
		{Prompt: "stop midway", Emit: "First the one, then the other.", TokensPerSecond: 0.001},
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
		stream := inTime(t, func() (client.Reply, error) { return c.Stream(t.Context(), ask, nil) })
		if whole.Text != want || stream.Text != want || whole.Finish != "stop" || stream.Finish != "stop" {
			t.Errorf("%s: %q (%s), streamed %q (%s)", mode, whole.Text, whole.Finish, stream.Text, stream.Finish)
		}
		if length := stream.Usage.Timings.AcceptLength; mode == "chain" && math.Abs(length-4) > 0.6 {
			t.Errorf("rounds commit %.2f tokens, the rule says 4: %+v", length, stream.Usage)
		}
	}

	// Forty that wait a quarter of an hour for a token hold up nobody else.
	const streams = 40
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	ended := make(chan error, streams)
	for range streams {
		go func() {
			_, err := c.Stream(ctx, client.Request{Messages: chat("Now stop midway."), MaxTokens: 100,
				Speculation: &client.Speculation{Mode: "off"}}, nil)
			ended <- err
		}()
	}
	eventually(t, "all slow answers run", func() bool {
		metrics, err := c.Get(t.Context(), "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		running := 0
		for _, m := range runningLine.FindAllSubmatch(metrics, -1) {
			n, _ := strconv.Atoi(string(m[1]))
			running += n
		}
		return running == streams
	})
	quick, err := c.Do(t.Context(), ask)
	if err != nil || quick.Text != want {
		t.Errorf("beside slow answers: %q, %v", quick.Text, err)
	}
	leave()
	for range streams {
		if err := testwait.For(t, ended, "a slow answer ends when its client has left"); !errors.Is(err, context.Canceled) {
			t.Errorf("a slow answer ended with %v", err)
		}
	}

	// As many at once, each at its own pace: twenty tokens or more at 40 a second.
	results := make(chan error, streams)
	for range streams {
		go func() {
			r, err := c.Stream(t.Context(),
				client.Request{Messages: chat("Count slowly."), MaxTokens: 100, Speculation: &client.Speculation{Mode: "off"}}, nil)
			if err == nil && (r.Text != strings.Repeat("tick ", 20) || r.Total < 400*time.Millisecond) {
				err = fmt.Errorf("%q in %v", r.Text, r.Total)
			}
			results <- err
		}()
	}
	for range streams {
		if err := testwait.For(t, results, "a slow answer"); err != nil {
			t.Error(err)
		}
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
	if !strings.Contains(lost.Text, "None of the 4 rules of TANDEM_SCRIPT") {
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

// TestScriptedCancel: a client that leaves frees its slot, whatever the worker was doing for it.
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
		// Left alone, either would hold the slot for ten minutes or more.
		ctx, leave = context.WithTimeout(t.Context(), patience)
		r, err := api.Do(ctx, client.Request{Messages: chat("anything"), MaxTokens: 50})
		leave()
		if err != nil || r.Text != "free" {
			t.Errorf("after %s: %q, %v", prompt, r.Text, err)
		}
	}
}
