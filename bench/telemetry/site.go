package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
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
}

// ways of looking; the first is what the others are compared with. What happens to requests whose caller does not want
// them traced is recorded, too, as it is in a cluster without a collector.
var ways = []way{
	{name: "off", site: siteOff},
	{name: "off, another cluster", site: siteOther},
	{name: "recorded", site: siteTraced},
	{name: "traced", site: siteTraced, sampled: true, judged: true},
	{name: "page", site: siteOff, watched: true, judged: true},
}

// flush is how long spans may take to be sent: a second until they are handed to the SDK, which sends every 5 s. What a
// block causes is sent before its processor time is read.
const flush = 6500 * time.Millisecond

// site is a running cluster.
type site struct {
	cluster *cluster.Cluster
	client  *client.Client
	engines []int // processes
	around  []int // gateway and workers
	cases   []report.Case
	sampled bool // of the requests that the client sends
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
		if p.Name == "tandem-engine" {
			s.engines = append(s.engines, p.PID)
		} else {
			s.around = append(s.around, p.PID)
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
	engines, around, err := s.processor()
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
	time.Sleep(flush) // in every way alike
	engines2, around2, err := s.processor()
	if err != nil {
		return b, err
	}
	b.Mode, b.Way, b.Rate = mode, w.name, float64(b.Tokens)/b.Seconds
	b.Around = float64((around2 - around).Nanoseconds()) / 1e3 / float64(b.Tokens)
	b.Processor = b.Around + float64((engines2-engines).Nanoseconds())/1e3/float64(b.Tokens)
	return b, nil
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

// processor is the processor time so far of the engines, and of the other processes of the cluster.
func (s *site) processor() (engines, around time.Duration, err error) {
	if engines, err = used(s.engines); err != nil {
		return 0, 0, err
	}
	around, err = used(s.around)
	return engines, around, err
}

func used(pids []int) (total time.Duration, err error) {
	for _, pid := range pids {
		var t unix.Timespec
		// The clock of a process, as clock_getcpuclockid(3) names it: finer than /proc.
		if err := unix.ClockGettime(int32(^pid)<<3|2, &t); err != nil {
			return 0, fmt.Errorf("the clock of process %d: %w", pid, err)
		}
		total += time.Duration(t.Nano())
	}
	return total, nil
}
