// Command needle asks for facts hidden in long prompts, with and without prompt compression.
//
//	go run ./bench/needle [-keep 0.05,0.1,0.2]
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
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

func main() {
	keep := flag.String("keep", "0.05,0.1,0.2", "keep ratios to try")
	flag.Parse()
	if err := run(context.Background(), *keep); err != nil {
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
	off := false
	for _, band := range bands {
		for _, setting := range settings {
			total, found, reference, tokens, read := 0, 0, 0, 0, 0
			var first, score []time.Duration
			for _, n := range needles {
				if n.Tokens <= band.from || n.Tokens > band.to {
					continue
				}
				question, _, _ := strings.Cut(strings.TrimPrefix(n.Prompt, "<|im_start|>user\n"), "<|im_end|>")
				reply, err := c.Stream(ctx, client.Request{
					Messages: []client.Message{{Role: "user", Content: question}}, MaxTokens: 24,
					EnableThinking: &off, PFlash: setting,
				}, nil)
				if err != nil {
					return fmt.Errorf("%d tokens, %v: %w", n.Tokens, setting, err)
				}
				total++
				if strings.Contains(reply.Text, n.Answer) {
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
