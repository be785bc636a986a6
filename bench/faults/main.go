// Command faults kills and stops processes of a cluster and disturbs its links at random moments, while clients stream
// answers, and checks what they saw (see tests/faults). As root every process is on a network of its own, where packets
// are dropped; otherwise a link of this program holds them back. The last line is PASS or FAIL; a JSON file holds all
// figures.
//
//	go run ./bench/faults [-kills 20] [-hangs 10] [-seed 1] [-gateways 2] [-out build/faults.json]
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
	"github.com/tandem-inference/tandem/tests/faults"
	"github.com/tandem-inference/tandem/tests/faults/history"
)

// inside is set where this program has a network namespace of its own.
const inside = "TANDEM_FAULTS_NAMESPACE"

func main() {
	cfg := faults.Config{Log: os.Stderr}
	flag.IntVar(&cfg.Kills, "kills", 20, "processes that are killed")
	flag.IntVar(&cfg.Hangs, "hangs", 10, "processes that are stopped, and links that are disturbed")
	flag.DurationVar(&cfg.Duration, "duration", 0, "end before all of them; 0 = never")
	flag.Uint64Var(&cfg.Seed, "seed", 1, "of faults and clients")
	flag.IntVar(&cfg.Clients, "clients", 3, "streams at a time")
	flag.IntVar(&cfg.Tokens, "tokens", 200, "tokens of an answer")
	flag.IntVar(&cfg.Gateways, "gateways", 2, "gateways of the cluster; several share an etcd inside this program")
	flag.DurationVar(&cfg.GatewayPause, "gateway-pause", 100*time.Millisecond, "time before a gateway is started again")
	flag.DurationVar(&cfg.HangTimeout, "hang-timeout", time.Second, "--hang-timeout of workers")
	flag.Float64Var(&cfg.Slack, "slack", 1, "factor of the limits of pauses, for busy machines")
	flag.StringVar(&cfg.Logs, "logs", "", "folder for the logs of all processes")
	out := flag.String("out", filepath.Join("build", "faults.json"), "file of results; the history is beside it")
	check := flag.String("check", "", "only check the history of this file")
	only := flag.String("only", "", "regular expression of the types of faults")
	namespaces := flag.Bool("namespaces", os.Geteuid() == 0, "every process in a network namespace; needs root")
	flag.Parse()
	report.Main(func(ctx context.Context) (bool, error) {
		if *check != "" {
			return judge(&cfg, *check, *out)
		}
		cfg.Namespaces = *namespaces
		return run(ctx, cfg, *only, *out)
	})
}

func run(ctx context.Context, cfg faults.Config, only, out string) (bool, error) {
	choice, err := regexp.Compile(only)
	if err != nil {
		return false, fmt.Errorf("-only: %w", err)
	}
	cfg.Only = choice.MatchString
	if cfg.Namespaces && os.Getenv(inside) == "" {
		if err := faults.Namespaces(ctx); err != nil {
			return false, fmt.Errorf("-namespaces: %w", err)
		}
		return false, faults.Inside(inside)
	}
	fmt.Println("# Faults\n\n" + report.Machine())
	if !cfg.Namespaces {
		fmt.Println("\nWithout network namespaces: links hold packets back, the kernel drops none.")
	}
	file, err := report.Beside(out, ".history")
	if err != nil {
		return false, err
	}
	defer file.Close()
	cfg.History = file
	r, err := faults.Run(ctx, cfg)
	if err != nil {
		return false, err
	}
	return show(r, out)
}

// judge checks the history of an earlier campaign.
func judge(cfg *faults.Config, file, out string) (bool, error) {
	in, err := os.Open(file)
	if err != nil {
		return false, fmt.Errorf("-check: %w", err)
	}
	defer in.Close()
	records, err := history.Read(in)
	if err != nil {
		return false, fmt.Errorf("-check: %w", err)
	}
	return show(&faults.Result{Report: cfg.Check(records)}, out)
}

// show prints a result, writes it and says whether it is accepted.
func show(r *faults.Result, out string) (bool, error) {
	table := &report.Table{Title: "Longest pause of a stream", Header: []string{"fault", "times", "p50, ms", "p99, ms",
		"max, ms", "limit, ms"}}
	table.Add("none", r.Quiet.Count, r.Quiet.P50, r.Quiet.P99, r.Quiet.Max, r.Quiet.Limit)
	for _, name := range slices.Sorted(maps.Keys(r.Faults)) {
		p := r.Faults[name]
		table.Add(name, p.Count, p.P50, p.P99, p.Max, p.Limit)
	}
	table.Add("(first tokens)", r.First.Count, r.First.P50, r.First.P99, r.First.Max, r.First.Limit)
	table.Write(os.Stdout)
	fmt.Printf("\n%d kills, %d hangs in %.0f s; %d requests, %d finished, %d ended with an "+
		"error beside a gateway's fault, %d resumed; %d replays\n%d tokens: %d lost, %d doubled, %d different\n", r.Kills,
		r.Hangs, r.Seconds, r.Requests, r.Finished, r.Errors, r.Resumed, r.Replays, r.Tokens, r.Lost, r.Doubled,
		r.Different)
	return report.Judge(out, struct {
		Machine string   `json:"machine"`
		Command []string `json:"command"`
		*faults.Result
	}{report.Machine(), os.Args[1:], r}, r.Problems(5))
}
