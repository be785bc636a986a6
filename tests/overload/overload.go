// Package overload sends a cluster several times the requests that it can serve, then clients that leave, and judges
// what must stay true: what is served is not slowed down by what is refused, the queue is bounded, refusals say when to
// try again, memory stays flat, and engines hold no sequence without a request.
package overload

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// Config of a run.
type Config struct {
	// Peak is how long what the cluster serves is measured, before the overload and after it, and Overload how long
	// requests beyond that are sent. Both are longer on a machine that serves too few in that time (see length).
	Peak     time.Duration
	Overload time.Duration
	Factor   float64 // requests that are sent then, as a multiple of the peak
	// Least is the goodput under overload as a share of the peak: of the lower one of those before and after, because
	// the machine may have become slower or faster meanwhile. A share below it is measured again, Tries times in all.
	Least       float64
	Tries       int
	Slots       int // the cluster's --lanes
	Queue       int // the cluster's --max-queue
	Clients     int // at a time for the peak: more than the cluster has slots, fewer than slots and queue
	Disconnects int // clients that leave at random moments, after the overload
	Tokens      int // of an answer
	// MemoryRise is by which share a process may grow from the end of the first third of the overload on, and MemorySlack
	// by how many bytes more.
	MemoryRise  float64
	MemorySlack int64
	Log         io.Writer // gets progress; nil = nothing
}

// Args of the cluster's "tandem serve" that a run needs.
func (c Config) Args() []string {
	return []string{"--demo", "--lanes", strconv.Itoa(c.Slots), "--max-queue", strconv.Itoa(c.Queue)}
}

// Env of the cluster that a run needs: a prefix cache that is full long before memory is first measured.
func (c Config) Env() []string { return []string{"TANDEM_PREFIX_CACHE_SLOTS=16"} }

// Result of a run.
type Result struct {
	PeakRequests float64   `json:"peak_requests_per_second"`
	Peak         float64   `json:"peak_tokens_per_second"`
	PeakAfter    float64   `json:"peak_after_overload_tokens_per_second"`
	Goodput      float64   `json:"goodput_tokens_per_second"`
	Share        float64   `json:"goodput_share_of_peak"`
	Sent         int       `json:"sent"`
	Served       int       `json:"served"`
	Refused      int       `json:"refused_429"`
	NoRetry      int       `json:"refused_without_retry_after"`
	Failed       int       `json:"failed_otherwise"`
	Queue        int       `json:"longest_queue"`
	Slowest      float64   `json:"slowest_served_seconds"`
	Left         int       `json:"disconnects"`
	Orphans      int       `json:"orphaned_sequences_seen"`
	Memory       []Process `json:"memory"`
	Problems     []string  `json:"problems"`
}

// Process is the memory of one process, in bytes.
type Process struct {
	Name         string `json:"name"`
	PID          int    `json:"pid"`
	Before       int64  `json:"rss_after_first_third"`
	After        int64  `json:"rss_after_overload"`
	Disconnected int64  `json:"rss_after_disconnects"`
}

// Passed reports whether nothing was wrong.
func (r *Result) Passed() bool { return len(r.Problems) == 0 }

// run is the state of one.
type run struct {
	cfg    Config
	cl     *cluster.Cluster
	client *http.Client

	mu sync.Mutex // guards r
	r  Result
}

// Run runs the load. An error means that it could not be judged.
func Run(ctx context.Context, cl *cluster.Cluster, cfg Config) (*Result, error) {
	s := &run{cfg: cfg, cl: cl, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}}
	if _, _, err := s.ask(ctx, 0, false); err != nil {
		return nil, fmt.Errorf("the first request: %w", err)
	}
	before, err := s.peak(ctx)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		s.r.PeakRequests, s.r.Peak = before.requests, before.tokens
		if err := s.overload(ctx); err != nil {
			return nil, err
		}
		after, err := s.peak(ctx)
		if err != nil {
			return nil, err
		}
		s.r.PeakAfter = after.tokens
		s.r.Share = s.r.Goodput / min(before.tokens, after.tokens)
		if s.r.Share >= cfg.Least || try >= cfg.Tries {
			break
		}
		before = after
	}
	s.flat(ctx, func(p *Process, rss int64) { p.After = rss })
	s.disconnect(ctx)
	s.settle(ctx)
	s.flat(ctx, func(p *Process, rss int64) { p.Disconnected = rss })
	s.judge()
	return &s.r, ctx.Err()
}

func (s *run) log(format string, args ...any) {
	if s.cfg.Log != nil {
		fmt.Fprintf(s.cfg.Log, format+"\n", args...)
	}
}

func (s *run) problem(format string, args ...any) {
	s.r.Problems = append(s.r.Problems, fmt.Sprintf(format, args...))
}

// api asks for the pages of the cluster.
func (s *run) api() *client.Client { return &client.Client{Base: s.cl.HTTP, HTTP: s.client} }

// refusal is an answer other than 200.
type refusal struct {
	status int
	retry  string
	text   string
}

func (r *refusal) Error() string { return fmt.Sprintf("status %d: %s", r.status, r.text) }

// ask sends request i and returns the tokens of its answer. With stream its body is left to the caller.
func (s *run) ask(ctx context.Context, i int, stream bool) (tokens int, body io.ReadCloser, err error) {
	data, err := json.Marshal(map[string]any{
		"model": "overload", "prompt": fmt.Sprintf("func f%d(list []int) int {\n\t// returns", i%7),
		"max_tokens": s.cfg.Tokens, "temperature": 0.9, "seed": i, "stream": stream, "ignore_eos": true,
	})
	if err != nil {
		return 0, nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.cl.HTTP+"/v1/completions", bytes.NewReader(data))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	if stream && response.StatusCode == http.StatusOK {
		return 0, response.Body, nil
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, nil, err
	}
	if response.StatusCode != http.StatusOK {
		return 0, nil, &refusal{response.StatusCode, response.Header.Get("Retry-After"), string(text)}
	}
	var reply struct {
		Usage struct {
			CompletionTokens int `json:"completion_tokens"`
		}
	}
	if err := json.Unmarshal(text, &reply); err != nil || reply.Usage.CompletionTokens == 0 {
		return 0, nil, fmt.Errorf("answer %.200q: %w", text, err)
	}
	return reply.Usage.CompletionTokens, nil, nil
}

// steadyShare is the last part of a phase, in which answers count: its beginning, until slots and queue are filled,
// does not.
const steadyShare = 0.75

// length of a phase in which the cluster serves perSecond requests: enough for the slots and the queue to be filled and
// served four times, so that most answers of those that waited come in its steady part however slow the machine is.
func (c *Config) length(least time.Duration, perSecond float64) time.Duration {
	return max(least, time.Duration(4*float64(c.Slots+c.Queue)/perSecond*float64(time.Second)))
}

// rate is what the cluster serves in a second.
type rate struct{ requests, tokens float64 }

// peak measures what the cluster serves when there is always a request that waits, and none is refused. It counts from
// the answer with which every client has had one, for cfg.Peak at least and until each could have had two more.
func (s *run) peak(ctx context.Context) (rate, error) {
	var mu sync.Mutex // guards what follows
	var group sync.WaitGroup
	answers, requests, tokens, first := 0, 0, 0, error(nil)
	var begin time.Time
	var seconds float64
	for c := range s.cfg.Clients {
		group.Go(func() {
			for i := c; ; i += s.cfg.Clients {
				n, _, err := s.ask(ctx, i, false)
				mu.Lock()
				if err != nil && first == nil {
					first = err
				}
				answers++
				switch {
				case first != nil || seconds > 0:
				case answers == s.cfg.Clients:
					begin = time.Now()
				case answers > s.cfg.Clients:
					requests, tokens = requests+1, tokens+n
					if passed := time.Since(begin); passed >= s.cfg.Peak && requests >= 2*s.cfg.Clients {
						seconds = passed.Seconds()
					}
				}
				end := first != nil || seconds > 0
				mu.Unlock()
				if end {
					return
				}
			}
		})
	}
	group.Wait()
	if first != nil {
		return rate{}, fmt.Errorf("while the peak was measured: %w", first)
	}
	r := rate{float64(requests) / seconds, float64(tokens) / seconds}
	s.log("peak: %.1f requests, %.0f tokens a second", r.requests, r.tokens)
	return r, nil
}

// overload sends requests at a fixed rate, whatever becomes of them.
func (s *run) overload(ctx context.Context) error {
	var group sync.WaitGroup
	length := s.cfg.length(s.cfg.Overload, s.r.PeakRequests)
	start, tokens := time.Now(), 0
	steady, over := start.Add(time.Duration((1-steadyShare)*float64(length))), start.Add(length)
	third := len(s.r.Memory) > 0 // an earlier try noted it
	watched, stop := context.WithCancel(ctx)
	group.Go(func() { s.watch(watched) })
	pause := time.Duration(float64(time.Second) / (s.cfg.Factor * s.r.PeakRequests))
	for i := 0; time.Now().Before(over) && ctx.Err() == nil; i++ {
		if !third && time.Since(start) > length/3 {
			third = true
			s.memory(func(p *Process, rss int64) { p.Before = rss })
		}
		group.Go(func() {
			begin := time.Now()
			n, _, err := s.ask(ctx, i, false)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.r.Sent++
			var refused *refusal
			switch {
			case err == nil:
				s.r.Served++
				s.r.Slowest = max(s.r.Slowest, time.Since(begin).Seconds())
				if now := time.Now(); now.After(steady) && now.Before(over) {
					tokens += n
				}
			case errors.As(err, &refused) && refused.status == http.StatusTooManyRequests:
				s.r.Refused++
				if n, err := strconv.Atoi(refused.retry); err != nil || n < 1 {
					s.r.NoRetry++
				}
			default:
				if s.r.Failed++; s.r.Failed <= 3 {
					s.problem("a request failed: %v", err)
				}
			}
		})
		time.Sleep(time.Until(start.Add(time.Duration(i+1) * pause)))
	}
	time.Sleep(time.Until(over))
	s.mu.Lock()
	s.r.Goodput = float64(tokens) / (steadyShare * length.Seconds())
	s.mu.Unlock()
	stop()
	group.Wait()
	s.log("overload: %d sent, %d served, %d refused, %.0f tokens a second", s.r.Sent, s.r.Served, s.r.Refused, s.r.Goodput)
	return ctx.Err()
}

// memory reads the size of all processes.
func (s *run) memory(note func(p *Process, rss int64)) {
	for _, p := range s.cl.Processes() {
		z, err := cluster.SizesOf(p.PID)
		if err != nil {
			continue // it ended just now
		}
		at := -1
		for i := range s.r.Memory {
			if s.r.Memory[i].PID == p.PID {
				at = i
			}
		}
		if at < 0 {
			at = len(s.r.Memory)
			s.r.Memory = append(s.r.Memory, Process{Name: p.Name, PID: p.PID})
		}
		note(&s.r.Memory[at], z.RSSBytes)
	}
}

// bound is what a process may have grown to.
func (c *Config) bound(p *Process) int64 {
	return int64(float64(p.Before)*(1+c.MemoryRise)) + c.MemorySlack
}

// flat notes the memory of all processes once none has grown beyond its bound, or after a while. What was held for
// requests is given back a little after them; what leaks stays.
func (s *run) flat(ctx context.Context, note func(p *Process, rss int64)) {
	for deadline := time.Now().Add(settleTime); ctx.Err() == nil; time.Sleep(500 * time.Millisecond) {
		grown := false
		s.memory(func(p *Process, rss int64) {
			note(p, rss)
			grown = grown || rss > s.cfg.bound(p)
		})
		if !grown || time.Now().After(deadline) {
			return
		}
	}
}

// watch samples the length of the queue.
func (s *run) watch(ctx context.Context) {
	for ctx.Err() == nil {
		page, err := s.api().Get(ctx, "/metrics")
		if err == nil {
			for line := range strings.Lines(string(page)) {
				if value, ok := strings.CutPrefix(line, "tandem_queue_depth"); ok {
					fields := strings.Fields(value)
					n, _ := strconv.ParseFloat(fields[len(fields)-1], 64)
					s.mu.Lock()
					s.r.Queue = max(s.r.Queue, int(n))
					s.mu.Unlock()
				}
			}
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// disconnect sends streams whose clients leave: before the answer, at its head, or after some of its lines.
func (s *run) disconnect(ctx context.Context) {
	var group sync.WaitGroup
	next := make(chan int)
	for range s.cfg.Clients {
		group.Go(func() {
			for i := range next {
				s.leave(ctx, i)
			}
		})
	}
	for i := range s.cfg.Disconnects {
		next <- i
	}
	close(next)
	group.Wait()
	s.r.Left = s.cfg.Disconnects
	s.log("%d clients left", s.r.Left)
}

// leave sends one stream and leaves it.
func (s *run) leave(ctx context.Context, i int) {
	random := rand.New(rand.NewPCG(uint64(i), 1))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if random.IntN(3) == 0 {
		timer := time.AfterFunc(time.Duration(random.IntN(20_000))*time.Microsecond, cancel)
		defer timer.Stop()
	}
	_, body, err := s.ask(ctx, i, true)
	if err != nil || body == nil {
		return // it left before, or was refused
	}
	lines := bufio.NewScanner(body)
	for n := random.IntN(20); n > 0 && lines.Scan(); n-- {
	}
	cancel()
	_ = body.Close()
}

// settleTime is how long the last cancellations and the reports of them may take.
const settleTime = time.Minute

// settle waits until no request is at work any more.
func (s *run) settle(ctx context.Context) {
	for deadline := time.Now().Add(settleTime); ; time.Sleep(200 * time.Millisecond) {
		workers, err := s.api().Workers(ctx)
		busy := 0
		s.r.Orphans = 0
		for _, w := range workers {
			busy += w.Sequences + w.LanesBusy
			s.r.Orphans += w.Orphans + int(w.Counters["orphaned_sequences_freed"])
		}
		if err == nil && len(workers) > 0 && busy == 0 {
			return
		}
		if time.Now().After(deadline) {
			s.problem("without a request at work, workers say %+v, %v", workers, err)
			return
		}
	}
}

// judge looks at what was counted.
func (s *run) judge() {
	r := &s.r
	if r.Share < s.cfg.Least {
		s.problem("goodput was %.0f tokens a second under overload, %.0f at its peak before and %.0f after",
			r.Goodput, r.Peak, r.PeakAfter)
	}
	if r.Queue > s.cfg.Queue {
		s.problem("%d requests waited, --max-queue is %d", r.Queue, s.cfg.Queue)
	}
	if r.Refused == 0 || r.Queue == 0 {
		s.problem("%d requests were refused, at most %d waited: it was no overload", r.Refused, r.Queue)
	}
	if r.NoRetry > 0 {
		s.problem("%d refusals have no Retry-After of at least 1 s", r.NoRetry)
	}
	if r.Failed > 0 {
		s.problem("%d requests failed with another status than 429", r.Failed)
	}
	if r.Orphans > 0 {
		s.problem("%d sequences belonged to no request", r.Orphans)
	}
	for _, m := range r.Memory {
		switch {
		case m.Before == 0:
			s.problem("process %s (%d) was started during the run", m.Name, m.PID)
		case max(m.After, m.Disconnected) > s.cfg.bound(&m):
			s.problem("%s (%d) grew from %d MB to %d, and %d after the disconnects", m.Name, m.PID, m.Before/1e6, m.After/1e6,
				m.Disconnected/1e6)
		}
	}
}
