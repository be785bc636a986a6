package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
	"golang.org/x/sys/unix"
)

// Clusters that stand beside each other.
const (
	siteOff    = "off"
	siteOther  = "other"
	siteTraced = "traced"
)

// way is how a block of requests is looked at.
type way struct {
	name, site string
	sampled    bool // requests are traced
	watched    bool // a client reads the events of the page
	judged     bool
	// late: what it costs comes after the block, too, so that the pause for that counts.
	late bool
}

// ways of looking; the first is what the others are compared with. What happens to requests whose caller does not want
// them traced is recorded, too, as it is in a cluster without a collector.
var ways = []way{
	{name: "off", site: siteOff},
	{name: "other", site: siteOther}, // a cluster like that of off
	{name: "recorded", site: siteTraced, late: true},
	{name: "traced", site: siteTraced, sampled: true, judged: true, late: true},
	{name: "page", site: siteOff, watched: true, judged: true},
}

// choose returns the ways of a list of names.
func choose(list string) ([]way, error) {
	if list == "" {
		return ways, nil
	}
	var out []way
	names := strings.Split(list, ",")
	for _, w := range ways {
		if slices.Contains(names, w.name) {
			out = append(out, w)
		}
	}
	if len(out) != len(names) || out[0].name != ways[0].name {
		return nil, fmt.Errorf("-ways %s: want some of off, other, recorded, traced and page, each once, with off", list)
	}
	return out, nil
}

const (
	// flush is how long spans may take to be sent: a second until they are handed to the SDK, which sends every 5 s. What
	// a block causes is sent before its processor time is read.
	flush = 6500 * time.Millisecond
	// settle is how long the gateway may take to reach the workers for a page, and the page's last events to come. Its
	// processor time is read then: a page that looks on while nothing is decoded costs no token anything.
	settle = 600 * time.Millisecond
)

// site is a running cluster.
type site struct {
	cluster *cluster.Cluster
	client  *client.Client
	// processes by what they are: engines, gateway, target, and the other workers
	engines, gateway, target, others []int
	cases                            []report.Case
	sampled                          bool // of the requests that the client sends
}

func open(ctx context.Context, name, collector string, threads int, cases []report.Case) (*site, error) {
	o := cluster.Options{Args: []string{"--demo", "--prefix-cache-slots", "0", "--threads", strconv.Itoa(threads)}}
	if name == siteTraced {
		o.Args = append(o.Args, "--otlp-endpoint", collector, "--trace-ratio", "1")
	} else {
		o.Env = []string{"OTEL_SDK_DISABLED=true"}
	}
	cl, err := report.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &site{cluster: cl, client: client.New(cl.HTTP), cases: cases}
	s.client.HTTP.Transport = &parent{s.client.HTTP.Transport, s}
	for _, p := range cl.Processes() {
		switch p.Name {
		case "tandem-engine":
			s.engines = append(s.engines, p.PID)
		case "tandem":
			s.gateway = append(s.gateway, p.PID)
		case "worker-target":
			s.target = append(s.target, p.PID)
		default:
			s.others = append(s.others, p.PID)
		}
	}
	return s, nil
}

func (s *site) close() { s.cluster.Close() }

// parent gives every request a traced or an untraced parent.
type parent struct {
	next http.RoundTripper
	site *site
}

// RoundTrip implements http.RoundTripper.
func (p *parent) RoundTrip(r *http.Request) (*http.Response, error) {
	id := make([]byte, 24)
	_, _ = rand.Read(id)
	flags := "00"
	if p.site.sampled {
		flags = "01"
	}
	r.Header.Set("traceparent", "00-"+hex.EncodeToString(id[:16])+"-"+hex.EncodeToString(id[16:])+"-"+flags)
	return p.next.RoundTrip(r)
}

// run runs a block of requests, one after the other.
func (s *site) run(ctx context.Context, w way, mode string, o options) (b block, err error) {
	s.sampled = w.sampled
	if w.watched {
		leave, err := s.look(ctx)
		if err != nil {
			return b, err
		}
		defer func() { err = errors.Join(err, leave()) }()
	}
	time.Sleep(settle)
	before, err := s.processor()
	if err != nil {
		return b, err
	}
	began := time.Now()
	for i := range o.requests {
		c := s.cases[i%len(s.cases)]
		request := client.Request{Prompt: c.IDs, MaxTokens: len(c.Greedy), Speculation: &client.Speculation{Mode: mode}}
		if o.tokens > 0 {
			end := strconv.Itoa(int(c.Greedy[len(c.Greedy)-1]))
			request.MaxTokens, request.LogitBias = o.tokens, map[string]int{end: -100}
		}
		reply, err := s.client.Stream(ctx, request, nil)
		if err != nil {
			return b, err
		}
		b.Tokens += reply.Usage.CompletionTokens
	}
	b.Seconds = time.Since(began).Seconds()
	b.Mode, b.Way, b.Rate = mode, w.name, float64(b.Tokens)/b.Seconds
	time.Sleep(settle)
	if b.Soon, err = s.since(before, b.Tokens); err != nil || !o.late() {
		return b, err
	}
	time.Sleep(flush - settle) // in every way alike
	b.Late, err = s.since(before, b.Tokens)
	return b, err
}

// look reads the events of the live page until leave is called.
func (s *site) look(ctx context.Context) (leave func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.client.Base+"/ui/events", nil)
	if err != nil {
		cancel()
		return nil, err
	}
	response, err := http.DefaultClient.Do(request) //nolint:bodyclose // the goroutine below closes it
	if err != nil {
		cancel()
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		cancel()
		_ = response.Body.Close()
		return nil, fmt.Errorf("/ui/events: status %d", response.StatusCode)
	}
	done := make(chan error, 1)
	rounds := 0
	go func() {
		text, err := io.ReadAll(response.Body)
		rounds = strings.Count(string(text), `"type":"round"`)
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		done <- errors.Join(err, response.Body.Close())
	}()
	return func() error {
		cancel()
		if err := <-done; err != nil {
			return err
		}
		if rounds == 0 {
			return errors.New("the page saw no round")
		}
		return nil
	}, nil
}

// processor is the processor time so far, in microseconds.
func (s *site) processor() (c costs, err error) {
	for _, group := range []struct {
		pids []int
		at   *float64
	}{{s.engines, &c.Engines}, {s.gateway, &c.Gateway}, {s.target, &c.Target}, {s.others, &c.Others}} {
		if *group.at, err = used(group.pids); err != nil {
			return c, err
		}
	}
	return c, nil
}

// since is the processor time of a token since before.
func (s *site) since(before costs, tokens int) (costs, error) {
	now, err := s.processor()
	n := float64(tokens)
	return costs{(now.Engines - before.Engines) / n, (now.Gateway - before.Gateway) / n,
		(now.Target - before.Target) / n, (now.Others - before.Others) / n}, err
}

// used is the processor time of processes, in microseconds.
func used(pids []int) (total float64, err error) {
	for _, pid := range pids {
		var t unix.Timespec
		// The clock of a process, as clock_getcpuclockid(3) names it: finer than /proc.
		if err := unix.ClockGettime(int32(^pid)<<3|2, &t); err != nil {
			return 0, fmt.Errorf("the clock of process %d: %w", pid, err)
		}
		total += float64(t.Nano()) / 1e3
	}
	return total, nil
}
