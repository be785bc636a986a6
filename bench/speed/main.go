// Command speed measures decoding and prefill of the demonstration models through the gateway, plain and speculative,
// and of llama.cpp on the same file and prompts.
//
//	go run ./bench/speed [-threads 1,2] [-rounds 3] [-llamacpp=false]
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

const prefillTokens = 3500

// modes of decoding that are compared.
var modes = []client.Speculation{{Mode: "off"}, {Mode: "chain"}, {Mode: "tree", Budget: 16},
	{Mode: "tree", Budget: 22}, {Mode: "auto"}}

// rates are tokens per second by kind of prompt, and for all together.
type rates map[string]float64

type result struct {
	decode  map[string]rates // by mode
	accept  map[string]rates // tokens per step, by mode
	prefill float64
	wall    float64 // of prefill, seen from outside
}

func main() {
	threadList := flag.String("threads", "1,2", "numbers of threads")
	rounds := flag.Int("rounds", 3, "rounds; the best counts")
	stride := flag.Int("stride", 1, "use every n-th prompt")
	withLlama := flag.Bool("llamacpp", true, "measure llama.cpp too (needs node and npm)")
	flag.Parse()
	if err := run(context.Background(), *threadList, *rounds, *stride, *withLlama); err != nil {
		report.Exit(err)
	}
}

func run(ctx context.Context, threadList string, rounds, stride int, withLlama bool) error {
	all, err := report.Cases()
	if err != nil {
		return err
	}
	var cases []report.Case
	for i := 0; i < len(all); i += stride {
		cases = append(cases, all[i])
	}
	var long []int32
	for _, c := range slices.Repeat(all, 4) {
		long = append(long, c.IDs...)
	}
	long = long[:prefillTokens]
	kinds := []string{"qa", "tools", "fn", "all"}

	fmt.Println("# Speed\n\n" + report.Machine())
	decode := &report.Table{Title: "Decoding, tokens per second (tokens per step)",
		Header: append([]string{"engine", "threads", "mode"}, kinds...)}
	prefill := &report.Table{Title: fmt.Sprintf("Prefill of %d tokens, tokens per second", prefillTokens),
		Header: []string{"engine", "threads", "engine time", "seen by the client"}}
	var threads []int
	for text := range strings.SplitSeq(threadList, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		threads = append(threads, n)
		r, err := ours(ctx, n, rounds, cases, long)
		if err != nil {
			return err
		}
		for _, m := range modes {
			row := []any{"tandem", n, label(m)}
			for _, kind := range kinds {
				row = append(row, fmt.Sprintf("%.0f (%.2f)", r.decode[label(m)][kind], r.accept[label(m)][kind]))
			}
			decode.Add(row...)
		}
		prefill.Add("tandem", n, r.prefill, r.wall)
	}
	if withLlama {
		if err := llama(ctx, threads, rounds, cases, long, decode, prefill); err != nil {
			fmt.Fprintln(os.Stderr, "llama.cpp is left out:", err)
		}
	}
	decode.Write(os.Stdout)
	prefill.Write(os.Stdout)
	return nil
}

func label(s client.Speculation) string {
	if s.Budget > 0 {
		return fmt.Sprintf("%s:%d", s.Mode, s.Budget)
	}
	return s.Mode
}

// ours measures one cluster. Decode rates count tokens after the first over the decode time that the gateway reports.
func ours(ctx context.Context, threads, rounds int, cases []report.Case, long []int32) (result, error) {
	r := result{decode: map[string]rates{}, accept: map[string]rates{}}
	cl, err := report.Start(ctx, cluster.Options{Args: []string{"--demo", "--threads", strconv.Itoa(threads),
		"--prefix-cache-slots", "0"}}) // every prompt is read
	if err != nil {
		return r, err
	}
	defer cl.Close()
	c := client.New(cl.HTTP)
	for range rounds {
		for _, mode := range modes {
			tokens, seconds, steps := rates{}, rates{}, rates{}
			for _, g := range cases {
				reply, err := c.Do(ctx, client.Request{Prompt: g.IDs, MaxTokens: len(g.Greedy), Speculation: &mode})
				if err != nil {
					return r, err
				}
				for _, kind := range []string{g.Kind, "all"} {
					tokens[kind] += float64(reply.Usage.CompletionTokens)
					seconds[kind] += reply.Usage.Timings.DecodeMs / 1000
					steps[kind] += float64(reply.Usage.Timings.VerifySteps)
				}
			}
			if r.decode[label(mode)] == nil {
				r.decode[label(mode)], r.accept[label(mode)] = rates{}, rates{}
			}
			for kind := range tokens {
				n := float64(0) // first tokens belong to prefill
				for _, g := range cases {
					if g.Kind == kind || kind == "all" {
						n++
					}
				}
				r.decode[label(mode)][kind] = max(r.decode[label(mode)][kind], (tokens[kind]-n)/seconds[kind])
				r.accept[label(mode)][kind] = tokens[kind] / steps[kind]
			}
		}
		start := time.Now()
		reply, err := c.Do(ctx, client.Request{Prompt: long, MaxTokens: 1, Speculation: &client.Speculation{Mode: "off"}})
		if err != nil {
			return r, err
		}
		r.wall = max(r.wall, float64(len(long))/time.Since(start).Seconds())
		r.prefill = max(r.prefill, float64(len(long))/(reply.Usage.Timings.PrefillMs/1000))
	}
	return r, nil
}

// llama runs bench/llamacpp/bench.mjs on the same prompts.
func llama(ctx context.Context, threads []int, rounds int, cases []report.Case, long []int32, decode,
	prefill *report.Table) error {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "bench", "llamacpp")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "node-llama-cpp")); err != nil {
		install := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--no-package-lock",
			"--omit=optional", "--ignore-scripts")
		install.Dir = dir
		if out, err := install.CombinedOutput(); err != nil {
			return fmt.Errorf("npm install: %w\n%s", err, out)
		}
	}
	type job struct {
		Kind   string  `json:"kind"`
		IDs    []int32 `json:"ids"`
		Tokens int     `json:"tokens"`
	}
	jobs := struct {
		Threads []int     `json:"threads"`
		Rounds  int       `json:"rounds"`
		Decode  []job     `json:"decode"`
		Prefill [][]int32 `json:"prefill"`
	}{Threads: threads, Rounds: rounds, Prefill: [][]int32{long}}
	for _, g := range cases {
		jobs.Decode = append(jobs.Decode, job{g.Kind, g.IDs, len(g.Greedy)}, job{"all", g.IDs, len(g.Greedy)})
	}
	data, err := json.Marshal(jobs)
	if err != nil {
		return err
	}
	path := filepath.Join(os.TempDir(), fmt.Sprintf("tandem-jobs-%d.json", os.Getpid()))
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return err
	}
	defer os.Remove(path)
	node := exec.CommandContext(ctx, "node", "bench.mjs",
		filepath.Join(root, "models", "tandem-tiny-target-q4_k_m.gguf"), path)
	node.Dir, node.Stderr = dir, os.Stderr
	out, err := node.Output()
	if err != nil {
		return err
	}
	var got struct {
		Threads map[string]struct {
			Decode  rates
			Prefill float64
		}
		Version string
	}
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	if err := json.Unmarshal(lines[len(lines)-1], &got); err != nil {
		return err
	}
	for _, n := range threads {
		r := got.Threads[strconv.Itoa(n)]
		decode.Add("llama.cpp", n, "plain", r.Decode["qa"], r.Decode["tools"], r.Decode["fn"], r.Decode["all"])
		prefill.Add("llama.cpp", n, r.Prefill, "")
	}
	return nil
}
