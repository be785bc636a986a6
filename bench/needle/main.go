// Command needle asks for facts hidden in long prompts, with and without prompt compression; or, with -cache-types, in
// whole prompts with keys and values of each type, and counts how many drafted tokens are accepted with each and how
// many texts are those of the first.
//
//	go run ./bench/needle [-keep 0.05,0.1,0.2] [-cache-types all|f16,q8_0:q4_0,… [-out build/cache-types.json]]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	types := flag.String("cache-types", "",
		"types of keys and values to try instead: a list of all, of types and of pairs such as q8_0:q4_0")
	out := flag.String("out", filepath.Join("build", "cache-types.json"), "file of results of -cache-types")
	flag.Parse()
	do := func() error { return run(context.Background(), *keep) }
	if *types != "" {
		do = func() error { return compareTypes(context.Background(), *types, *out) }
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

// around8KFrom and around8KTo bound the prompts that types of keys and values are compared with, in tokens.
const around8KFrom, around8KTo = 5120, 10240

// pair is a type of keys and one of values.
type pair struct{ k, v kvtype.Type }

// pairs reads a list of them.
func pairs(list string) (out []pair, err error) {
	for name := range strings.SplitSeq(list, ",") {
		if name == "all" {
			for _, t := range kvtype.All() {
				out = append(out, pair{t, t})
			}
			continue
		}
		var p pair
		k, v, apart := strings.Cut(name, ":")
		if p.k, err = kvtype.Parse(k); err != nil {
			return nil, err
		}
		if p.v = p.k; apart {
			if p.v, err = kvtype.Parse(v); err != nil {
				return nil, err
			}
		}
		out = append(out, p)
	}
	return out, nil
}

// typesResult is what the file of -cache-types holds.
type typesResult struct {
	Machine string       `json:"machine"`
	Needles int          `json:"needles"` // prompts of 5K to 10K tokens with a fact
	Texts   int          `json:"texts"`   // greedy, of up to 64 tokens
	Types   []typeResult `json:"types"`
}

// typeResult is what was measured with a pair.
type typeResult struct {
	K        string  `json:"k"`
	V        string  `json:"v"`
	Bytes    float64 `json:"bytes_a_value"` // of keys and values, on average
	Found    int     `json:"found"`
	Same     int     `json:"same_texts"` // as with the first pair of the run
	Drafted  int     `json:"drafted_tokens"`
	Accepted int     `json:"accepted_tokens"`
}

// compareTypes asks with keys and values of each type: for facts in whole prompts of about 8K tokens, and for greedy
// texts that are drafted as chains. The file has what was measured so far.
func compareTypes(ctx context.Context, list, out string) error {
	tried, err := pairs(list)
	if err != nil {
		return fmt.Errorf("-cache-types: %w", err)
	}
	needles, err := report.Needles()
	if err != nil {
		return err
	}
	needles = slices.DeleteFunc(needles, func(n report.Needle) bool {
		return n.Tokens <= around8KFrom || n.Tokens > around8KTo
	})
	cases, err := report.Cases()
	if err != nil {
		return err
	}
	r := typesResult{Machine: report.Machine(), Needles: len(needles), Texts: len(cases)}
	fmt.Println("# Types of keys and values\n\n" + r.Machine)
	table := &report.Table{Title: "Facts found in prompts of 5K to 10K tokens, texts as with the first, drafts accepted",
		Header: []string{"K", "V", "bytes a value", "found", "same texts", "drafted", "accepted", "share"}}
	var first []string
	for _, p := range tried {
		one := typeResult{K: p.k.Name, V: p.v.Name, Bytes: float64(p.k.BlockBytes+p.v.BlockBytes) / (2 * kvtype.Block)}
		texts, err := one.measure(ctx, needles, cases)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", one.K, one.V, err)
		}
		if first == nil {
			first = texts
		}
		for i, text := range texts {
			if text == first[i] {
				one.Same++
			}
		}
		r.Types = append(r.Types, one)
		if err := report.WriteJSON(out, r); err != nil {
			return err
		}
		table.Add(one.K, one.V, one.Bytes, fmt.Sprintf("%d of %d", one.Found, r.Needles),
			fmt.Sprintf("%d of %d", one.Same, r.Texts), one.Drafted, one.Accepted,
			fmt.Sprintf("%.1f %%", 100*float64(one.Accepted)/float64(max(one.Drafted, 1))))
	}
	table.Write(os.Stdout)
	return nil
}

// measure asks a cluster of one pair of types and returns the texts of the cases.
func (r *typeResult) measure(ctx context.Context, needles []report.Needle, cases []report.Case) ([]string, error) {
	cl, err := report.Start(ctx, cluster.Options{Args: []string{"--demo", "--prefix-cache-slots", "0",
		"--cache-type-k", r.K, "--cache-type-v", r.V}})
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	c := client.New(cl.HTTP)
	for i := range needles {
		_, ok, err := ask(ctx, c, &needles[i], map[string]any{"mode": "off"})
		if err != nil {
			return nil, err
		}
		if ok {
			r.Found++
		}
	}
	var texts []string
	for i := range cases {
		reply, err := c.Do(ctx, client.Request{Prompt: cases[i].Prompt, MaxTokens: 64,
			Speculation: &client.Speculation{Mode: "chain"}})
		if err != nil {
			return nil, err
		}
		texts = append(texts, reply.Text)
		r.Drafted += reply.Usage.Timings.DraftedTokens
		r.Accepted += reply.Usage.Timings.AcceptedTokens
	}
	return texts, nil
}
