// Command soak runs mixed traffic against a demonstration cluster, a third of whose clients leave at random moments,
// and judges what must stay true (see tests/soak). The last line is PASS or FAIL; a JSON file holds all figures.
//
//	go run ./bench/soak [-duration 15m] [-clients 8] [-seed 1] [-out build/soak.json]
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
	"github.com/tandem-inference/tandem/tests/soak"
)

func main() {
	duration := flag.Duration("duration", 15*time.Minute, "length of the run")
	clients := flag.Int("clients", 8, "requests at a time, besides the reference request")
	seed := flag.Uint64("seed", 1, "of the clients' choices")
	out := flag.String("out", filepath.Join("build", "soak.json"), "file of results")
	flag.Parse()
	report.Main(func(ctx context.Context) (bool, error) {
		return run(ctx, *duration, *clients, *seed, *out)
	})
}

func run(ctx context.Context, duration time.Duration, clients int, seed uint64, out string) (bool, error) {
	cl, err := report.Start(ctx, cluster.Options{})
	if err != nil {
		return false, err
	}
	defer cl.Close()
	fmt.Println("# Soak\n\n" + report.Machine())
	// Memory rises for a while after the first third, as pools grow to their largest request: by 10 % and 16 MB at most.
	r, err := soak.Run(ctx, cl, soak.Config{
		Duration: duration, Clients: clients, Seed: seed, LatencyRise: 0.10, MemoryRise: 0.10,
		MemorySlack: 16 << 20, Log: os.Stderr,
	})
	if err != nil {
		return false, err
	}
	table := &report.Table{Title: "Memory", Header: []string{"process", "after a third, MB", "at the end, MB"}}
	for _, m := range r.Memory {
		table.Add(fmt.Sprintf("%s (%d)", m.Name, m.PID), float64(m.Before)/1e6, float64(m.After)/1e6)
	}
	table.Write(os.Stdout)
	fmt.Printf("\n%d requests finished and %v left in %.0f s; reference request, median by thirds: %.0f, %.0f, %.0f ms\n",
		r.Finished, r.Left,
		r.Seconds, r.Reference[0].MedianMs, r.Reference[1].MedianMs, r.Reference[2].MedianMs)
	fmt.Printf("%d refused, %d of them for want of sequences; %d text mismatches; %d samples of /cluster with %d orphans; engines at the end: %v\n",
		r.Refused, r.NoSequence, r.Mismatches, r.Samples, r.Orphans, r.AtEnd)
	return report.Judge(out, r, r.Problems)
}
