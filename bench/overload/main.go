// Command overload sends a demonstration cluster several times what it can serve and then clients that leave, and
// judges what must stay true (see tests/overload). The last line is PASS or FAIL; a JSON file holds all figures.
//
//	go run ./bench/overload [-duration 10m] [-factor 5] [-disconnects 10000] [-out build/overload.json]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/overload"
)

func main() {
	duration := flag.Duration("duration", 10*time.Minute, "length of the overload")
	factor := flag.Float64("factor", 5, "requests sent, as a multiple of those that the cluster serves")
	disconnects := flag.Int("disconnects", 10_000, "clients that leave")
	out := flag.String("out", filepath.Join("build", "overload.json"), "file of results")
	flag.Parse()
	report.Main(func(ctx context.Context) (bool, error) {
		return run(ctx, *duration, *factor, *disconnects, *out)
	})
}

func run(ctx context.Context, duration time.Duration, factor float64, disconnects int, out string) (bool, error) {
	cfg := overload.Config{
		Peak: min(duration, 30*time.Second), Overload: duration, Factor: factor, Least: 0.95, Tries: 1,
		Slots: 32, Queue: 16, Clients: 40, Disconnects: disconnects, Tokens: 256,
		MemoryRise: 0.10, MemorySlack: 32 << 20, Log: os.Stderr,
	}
	cl, err := report.Start(ctx, cluster.Options{Args: cfg.Args(), Env: cfg.Env()})
	if err != nil {
		return false, err
	}
	defer cl.Close()
	fmt.Println("# Overload\n\n" + report.Machine())
	r, err := overload.Run(ctx, cl, cfg)
	if err != nil {
		return false, err
	}
	table := &report.Table{
		Title:  "Memory",
		Header: []string{"process", "after a third, MB", "after the overload, MB", "after the disconnects, MB"},
	}
	for _, m := range r.Memory {
		table.Add(fmt.Sprintf("%s (%d)", m.Name, m.PID), float64(m.Before)/1e6, float64(m.After)/1e6,
			float64(m.Disconnected)/1e6)
	}
	table.Write(os.Stdout)
	fmt.Printf("\npeak %.0f tokens a second in %.1f requests, %.0f afterwards; "+
		"at %.0f times the requests %.0f (%.0f %%)\n",
		r.Peak, r.PeakRequests, r.PeakAfter, factor, r.Goodput, 100*r.Share)
	fmt.Printf("%d sent, %d served (the slowest in %.1f s), %d refused, %d of them without Retry-After, %d failed; "+
		"at most %d waited; %d clients left\n",
		r.Sent, r.Served, r.Slowest, r.Refused, r.NoRetry, r.Failed, r.Queue, r.Left)
	return report.Judge(out, r, r.Problems)
}
