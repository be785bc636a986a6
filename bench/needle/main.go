// Command needle asks for facts hidden in long prompts, with and without prompt compression; or, with -cache-types, in
// whole prompts with keys and values of each type, and counts how many drafted tokens are accepted with each.
//
//	go run ./bench/needle [-keep 0.05,0.1,0.2] [-cache-types all|f16,q8_0,…]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
	"github.com/tandem-inference/tandem/services/kvtype"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

func main() {
	keep := flag.String("keep", "0.05,0.1,0.2", "keep ratios to try")
	types := flag.String("cache-types", "", "types of keys and values to try instead: all, or a list")
	flag.Parse()
	do := func() error { return run(context.Background(), *keep) }
	if *types != "" {
		do = func() error { return compareTypes(context.Background(), *types) }
	}
	if err := do(); err != nil {
		report.Exit(err)
	}
}

// bands of prompt length, in tokens.
var bands = []struct {
	name     string
	from, to int
}{{"≤ 2K", 0, 2048}, {"2K–5K", 2048, 5120}, {"5K–10K", 5120, 10240}, {"> 10K", 10240, 1 << 30}}

func run(ctx context.Context, keep string) error {
	needles, err := report.Needles()
	if err != nil {
		return err
	}
	cl, err := report.Start(ctx, cluster.Options{Args: []string{"--demo", "--prefix-cache-slots", "0"}})
	if err != nil {
		return err
	}
	defer cl.Close()
	c := client.New(cl.HTTP)
	fmt.Println("# Needles\n\n" + report.Machine())
	table := &report.Table{Title: "Facts found, tokens read, time to first token",
		Header: []string{"prompts", "compression", "found", "reference, whole", "tokens", "read",
			"first token, median", "scoring, median"}}
	settings := []map[string]any{{"mode": "off"}}
	for text := range strings.SplitSeq(keep, ",") {
		ratio, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return err
		}
		settings = append(settings, map[string]any{"mode": "always", "keep_ratio": ratio})
	}
	for _, band := range bands {
		for _, setting := range settings {
			total, found, reference, tokens, read := 0, 0, 0, 0, 0
			var first, score []time.Duration
			for _, n := range needles {
				if n.Tokens <= band.from || n.Tokens > band.to {
					continue
				}
				reply, ok, err := ask(ctx, c, &n, setting)
				if err != nil {
					return err
				}
				total++
				if ok {
					found++
				}
				if n.FullOK {
					reference++
				}
				tokens += reply.Usage.PromptTokens
				read += reply.Usage.PromptTokens - reply.Usage.PromptDetails.CompressedTokens
				first = append(first, reply.First)
				score = append(score, time.Duration(reply.Usage.Timings.CompressMs*float64(time.Millisecond)))
			}
			if total == 0 {
				continue
			}
			name := "none"
			if setting["mode"] == "always" {
				name = fmt.Sprintf("keep %v", setting["keep_ratio"])
			}
			table.Add(band.name, name, fmt.Sprintf("%d of %d", found, total), reference, tokens, read,
				report.Percentile(first, 0.5), report.Percentile(score, 0.5))
		}
	}
	table.Write(os.Stdout)
	return nil
}

// ask asks for a fact and reports whether the answer has it.
func ask(ctx context.Context, c *client.Client, n *report.Needle, compression map[string]any) (
	reply client.Reply, found bool, err error,
) {
	off := false
	question, _, _ := strings.Cut(strings.TrimPrefix(n.Prompt, "<|im_start|>user\n"), "<|im_end|>")
	reply, err = c.Stream(ctx, client.Request{
		Messages: []client.Message{{Role: "user", Content: question}}, MaxTokens: 24,
		EnableThinking: &off, PFlash: compression,
	}, nil)
	if err != nil {
		return reply, false, fmt.Errorf("%d tokens, %v: %w", n.Tokens, compression, err)
	}
	return reply, strings.Contains(reply.Text, n.Answer), nil
}

// around8K are the prompts that types of keys and values are compared with, in tokens.
const around8KFrom, around8KTo = 5120, 10240

// compareTypes asks with keys and values of each type: for facts in whole prompts of about 8K tokens, and for greedy
// texts that are drafted as chains.
func compareTypes(ctx context.Context, list string) error {
	names := strings.Split(list, ",")
	if list == "all" {
		names = nil
		for _, t := range kvtype.All() {
			names = append(names, t.Name)
		}
	}
	needles, err := report.Needles()
	if err != nil {
		return err
	}
	cases, err := report.Cases()
	if err != nil {
		return err
	}
	fmt.Println("# Types of keys and values\n\n" + report.Machine())
	table := &report.Table{Title: "Facts found in prompts of 5K to 10K tokens, drafted tokens accepted",
		Header: []string{"K and V", "found", "drafted", "accepted", "share"}}
	for _, name := range names {
		if err := measureType(ctx, name, needles, cases, table); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	table.Write(os.Stdout)
	return nil
}

func measureType(
	ctx context.Context, name string, needles []report.Needle, cases []report.Case, table *report.Table,
) error {
	cl, err := report.Start(ctx, cluster.Options{Args: []string{"--demo", "--prefix-cache-slots", "0",
		"--cache-type-k", name, "--cache-type-v", name}})
	if err != nil {
		return err
	}
	defer cl.Close()
	c := client.New(cl.HTTP)
	found, total := 0, 0
	for _, n := range needles {
		if n.Tokens <= around8KFrom || n.Tokens > around8KTo {
			continue
		}
		_, ok, err := ask(ctx, c, &n, map[string]any{"mode": "off"})
		if err != nil {
			return err
		}
		if total++; ok {
			found++
		}
	}
	drafted, accepted := 0, 0
	for i := range cases {
		reply, err := c.Do(ctx, client.Request{Prompt: cases[i].Prompt, MaxTokens: 64,
			Speculation: &client.Speculation{Mode: "chain"}})
		if err != nil {
			return err
		}
		drafted += reply.Usage.Timings.DraftedTokens
		accepted += reply.Usage.Timings.AcceptedTokens
	}
	table.Add(name, fmt.Sprintf("%d of %d", found, total), drafted, accepted,
		fmt.Sprintf("%.1f %%", 100*float64(accepted)/float64(max(drafted, 1))))
	return nil
}
