// Command soak sends many requests and cancellations and watches that memory, open files and goroutines stay flat.
//
//	go run ./bench/soak [-requests 1000] [-cancels 200] [-clients 4]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

func main() {
	requests := flag.Int("requests", 1000, "requests that run to their end")
	cancels := flag.Int("cancels", 200, "requests that are cancelled while they stream")
	clients := flag.Int("clients", 4, "requests at a time")
	flag.Parse()
	if err := run(context.Background(), *requests, *cancels, *clients); err != nil {
		report.Exit(err)
	}
}

func run(ctx context.Context, requests, cancels, clients int) error {
	cases, err := report.Cases()
	if err != nil {
		return err
	}
	startCtx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	cl, err := cluster.Start(startCtx, cluster.Options{})
	if err != nil {
		return err
	}
	defer cl.Close()
	c := client.New(cl.HTTP)

	fmt.Println("# Soak\n\n" + report.Machine())
	load := func(total int, cancelEvery int) (failed int64) {
		var next atomic.Int64
		var failures atomic.Int64
		var group sync.WaitGroup
		for range clients {
			group.Go(func() {
				for i := next.Add(1); i <= int64(total); i = next.Add(1) {
					g := cases[int(i)%len(cases)]
					requestCtx, cancel := context.WithCancel(ctx)
					r := client.Request{Prompt: g.IDs, MaxTokens: 48, Temperature: 0.8, Seed: &i}
					onText := func(string) {}
					if cancelEvery > 0 {
						onText = func(string) { cancel() }
					}
					if _, err := c.Stream(requestCtx, r, onText); err != nil && cancelEvery == 0 {
						failures.Add(1)
						fmt.Fprintln(os.Stderr, err)
					}
					cancel()
				}
			})
		}
		group.Wait()
		return failures.Load()
	}
	load(100, 0) // warm-up: caches and pools fill
	table := &report.Table{Title: "Sizes before and after", Header: []string{"process", "memory before, MB", "after, MB", "files before", "after", "threads before", "after"}}
	before, goBefore := sizes(cl), goroutines(ctx, c)
	start := time.Now()
	failed := load(requests, 0)
	took := time.Since(start)
	load(cancels, 1)
	c.HTTP.CloseIdleConnections()
	time.Sleep(2 * time.Second) // let the last cancellations arrive
	after, goAfter := sizes(cl), goroutines(ctx, c)
	for _, p := range cl.Processes() {
		b, a := before[p.PID], after[p.PID]
		table.Add(fmt.Sprintf("%s (%d)", p.Name, p.PID), float64(b.RSSBytes)/1e6, float64(a.RSSBytes)/1e6, b.Files, a.Files, b.Threads, a.Threads)
	}
	table.Write(os.Stdout)
	fmt.Printf("\n%d requests in %.1f s (%.1f a second, %d at a time), %d failed; then %d cancelled\ngoroutines of the gateway: %s before, %s after\n",
		requests, took.Seconds(), float64(requests)/took.Seconds(), clients, failed, cancels, goBefore, goAfter)
	if failed > 0 {
		return fmt.Errorf("%d requests failed", failed)
	}
	return nil
}

func sizes(cl *cluster.Cluster) map[int]cluster.Sizes {
	out := map[int]cluster.Sizes{}
	for _, p := range cl.Processes() {
		if s, err := cluster.SizesOf(p.PID); err == nil {
			out[p.PID] = s
		}
	}
	return out
}

var goroutineLine = regexp.MustCompile(`(?m)^go_goroutines (\S+)$`)

// goroutines reads the gateway's count from /metrics, if it is there.
func goroutines(ctx context.Context, c *client.Client) string {
	body, err := c.Get(ctx, "/metrics")
	if err != nil {
		return "unknown"
	}
	m := goroutineLine.FindSubmatch(body)
	if m == nil {
		return "unknown"
	}
	v, _ := strconv.ParseFloat(string(m[1]), 64)
	return fmt.Sprintf("%.0f", v)
}
