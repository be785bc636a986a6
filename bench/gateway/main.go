// Command gateway measures what the gateway adds: the same prompts through HTTP and directly to worker-target by gRPC.
//
//	go run ./bench/gateway [-rounds 30]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

func main() {
	rounds := flag.Int("rounds", 30, "requests per way")
	flag.Parse()
	if err := run(context.Background(), *rounds); err != nil {
		report.Exit(err)
	}
}

type sample struct {
	first, total time.Duration
	tokens       int
}

func run(ctx context.Context, rounds int) error {
	cases, err := report.Cases()
	if err != nil {
		return err
	}
	cl, err := report.Start(ctx, cluster.Options{Args: []string{"--demo", "--prefix-cache-slots", "0"}})
	if err != nil {
		return err
	}
	defer cl.Close()
	c := client.New(cl.HTTP)
	target, hangUp, err := report.DialTarget(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = hangUp() }()

	fmt.Println("# What the gateway adds\n\n" + report.Machine())
	table := &report.Table{Title: "Medians over prompts",
		Header: []string{"speculation", "first token, direct", "through the gateway", "added",
			"tokens/s, direct", "through the gateway"}}
	for _, mode := range []string{"off", "auto"} {
		var direct, through []sample
		for i := range rounds {
			g := cases[i%len(cases)]
			d, err := askWorker(ctx, target, g, mode)
			if err != nil {
				return err
			}
			direct = append(direct, d)
			reply, err := c.Stream(ctx,
				client.Request{Prompt: g.IDs, MaxTokens: len(g.Greedy), Speculation: &client.Speculation{Mode: mode}}, nil)
			if err != nil {
				return err
			}
			through = append(through, sample{reply.First, reply.Total, reply.Usage.CompletionTokens})
		}
		added := make([]time.Duration, rounds)
		for i := range added {
			added[i] = through[i].first - direct[i].first
		}
		table.Add(mode, median(direct), median(through), report.Percentile(added, 0.5), rate(direct), rate(through))
	}
	table.Write(os.Stdout)
	return nil
}

func median(samples []sample) time.Duration {
	values := make([]time.Duration, len(samples))
	for i, s := range samples {
		values[i] = s.first
	}
	return report.Percentile(values, 0.5)
}

// rate is the throughput of whole requests, prefill included.
func rate(samples []sample) float64 {
	tokens, seconds := 0, 0.0
	for _, s := range samples {
		tokens += s.tokens
		seconds += s.total.Seconds()
	}
	return float64(tokens) / seconds
}

func askWorker(ctx context.Context, target tandemv1.TargetServiceClient, g report.Case, mode string) (sample, error) {
	request := &tandemv1.DecodeRequest{
		RequestId: "bench", PromptTokens: g.IDs, MaxTokens: int32(len(g.Greedy)),
		StopTokens: g.Greedy[len(g.Greedy)-1:], TopLogprobs: -1,
		Speculation: &tandemv1.Speculation{Mode: tandemv1.SpeculationMode_SPECULATION_MODE_OFF},
	}
	if mode == "auto" {
		request.Speculation.Mode = tandemv1.SpeculationMode_SPECULATION_MODE_AUTO
	}
	var s sample
	start := time.Now()
	stream, err := target.Decode(ctx, request)
	if err != nil {
		return s, err
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			s.total = time.Since(start)
			return s, nil
		}
		if err != nil {
			return s, err
		}
		if n := len(message.GetCommitted().GetTokens()); n > 0 {
			if s.tokens == 0 {
				s.first = time.Since(start)
			}
			s.tokens += n
		}
	}
}
