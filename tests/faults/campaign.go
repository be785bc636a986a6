// Package faults runs a cluster of real processes, kills and stops them and disturbs their links at random moments,
// while clients stream answers. Everything that clients see is recorded and checked (package history): no token may
// be lost, doubled or different.
package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/faults/history"
)

// Config of a campaign.
type Config struct {
	Kills, Hangs int
	// Duration ends a campaign before all of them, 0 = never.
	Duration time.Duration
	Seed     uint64
	// Clients stream at a time; answers of Tokens each.
	Clients, Tokens int
	// Asks is the number of different requests; 0 = all.
	Asks int
	// Gateways share an etcd of this process when they are several.
	Gateways int
	// GatewayArgs are added to the command line of gateways.
	GatewayArgs []string
	// GatewayPause is the time before a gateway that has ended is started again.
	GatewayPause time.Duration
	// HangTimeout is --hang-timeout of workers.
	HangTimeout time.Duration
	// Namespaces puts every part into a network namespace of its own, so that the kernel drops packets. It needs root,
	// and this process must be in a namespace itself: Inside.
	Namespaces bool
	// Slack multiplies all limits of pauses, on machines that are busy with other things.
	Slack float64
	// History receives a line for every record; Log progress; Logs is a folder for the logs of all parts. Each may be
	// empty.
	History io.Writer
	Log     io.Writer
	Logs    string
	// Only chooses among the types of faults; nil = all.
	Only func(name string) bool
}

// Result of a campaign.
type Result struct {
	*history.Report
	Seconds float64 `json:"seconds"`
	Kills   int     `json:"kills"`
	Hangs   int     `json:"hangs"`
	// Replays are generations that moved to another or the restarted worker, by the counter of the gateways.
	Replays int `json:"replays"`
	// Unhealed says after which fault the cluster was not whole again in time, and why; the campaign ended there.
	Unhealed string `json:"unhealed,omitempty"`
}

// healTime is how long a cluster may take to be whole again: processes that died several times in a row are started
// again after up to 10 s.
const healTime = 2 * time.Minute

// Run runs a campaign. An error means that it could not be judged.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	starting, stop := context.WithTimeout(ctx, time.Minute)
	r, err := startRig(starting, cfg)
	stop()
	if err != nil {
		return nil, err
	}
	defer r.close()
	out := &Result{}
	records, took, err := cfg.underLoad(ctx, r.bases(), func(notes *history.Recorder) error {
		counting, end := context.WithCancel(ctx)
		defer end()
		counted := make(chan int, 1)
		go func() { counted <- r.replays(counting) }()
		err := r.campaign(ctx, notes, out)
		end()
		out.Replays = <-counted
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, r.logs())
	}
	out.Seconds, out.Report = took.Seconds(), cfg.Check(records)
	return out, nil
}

// Check holds a history against the limits of a campaign.
func (c *Config) Check(records []history.Record) *history.Report {
	return history.Check(records, c.limits())
}

// campaign makes one part after the other fail.
func (r *rig) campaign(ctx context.Context, notes *history.Recorder, out *Result) error {
	rng := rand.New(rand.NewPCG(r.cfg.Seed, 0))
	faults := append(plan(r.chosen(killKinds()), r.cfg.Kills, rng), plan(r.chosen(hangKinds()), r.cfg.Hangs, rng)...)
	rng.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	start := time.Now()
	for i, k := range faults {
		if r.cfg.Duration > 0 && time.Since(start) > r.cfg.Duration {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(rng.Int64N(int64(1500 * time.Millisecond)))):
		}
		began := time.Now()
		healing, stop := context.WithTimeout(ctx, healTime)
		err := r.fail(healing, k, rng, func(p *part) {
			notes.Add(history.Record{Kind: history.Fault, Fault: i + 1, Type: k.String(), Part: p.name,
				Gateway: max(0, slices.Index(r.of(gateway), p))})
		})
		stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if k.act == kill {
			out.Kills++
		} else {
			out.Hangs++
		}
		if err != nil {
			out.Unhealed = fmt.Sprintf("fault %d, %s: after %v %v", i+1, k, healTime, err)
			return nil
		}
		notes.Add(history.Record{Kind: history.Healed, Fault: i + 1})
		if r.cfg.Log != nil {
			fmt.Fprintf(r.cfg.Log, "%d of %d: %s, whole after %v\n", i+1, len(faults), k,
				time.Since(began).Round(time.Millisecond))
		}
	}
	return nil
}

// chosen are the types of faults that the configuration does not leave out.
func (r *rig) chosen(all []kind) (out []kind) {
	for _, k := range all {
		if r.cfg.Only == nil || r.cfg.Only(k.String()) {
			out = append(out, k)
		}
	}
	return out
}

// replays adds up what the gateways count until ctx ends. A gateway that is started again counts from 0.
func (r *rig) replays(ctx context.Context) (sum int) {
	counters := map[string]int{}
	for {
		for _, base := range r.bases() {
			c := client.New(base)
			c.Key = apiKey
			n, err := retries(ctx, c)
			c.HTTP.CloseIdleConnections()
			if err != nil {
				continue
			}
			if n < counters[base] {
				counters[base] = 0
			}
			sum += n - counters[base]
			counters[base] = n
		}
		select {
		case <-ctx.Done():
			return sum
		case <-time.After(500 * time.Millisecond):
		}
	}
}

var errNoCounter = errors.New("/metrics has no tandem_retries_total")

func retries(ctx context.Context, c *client.Client) (int, error) {
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	text, err := c.Get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "tandem_retries_total") {
			continue
		}
		fields := strings.Fields(line)
		n, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		return int(n), err
	}
	return 0, errNoCounter
}

// Problems are what the campaign does not accept, at most a few of each kind.
func (r *Result) Problems(most int) (out []string) {
	count := map[string]int{}
	for _, p := range r.Report.Problems {
		if count[p.Kind]++; count[p.Kind] <= most {
			out = append(out, fmt.Sprintf("%s at %v, stream %s: %s", p.Kind, p.At.Round(time.Millisecond), p.Stream, p.Text))
		}
	}
	for kind, n := range count {
		if n > most {
			out = append(out, fmt.Sprintf("%d more of the kind %q", n-most, kind))
		}
	}
	if r.Unhealed != "" {
		out = append(out, r.Unhealed)
	}
	if r.Finished == 0 {
		out = append(out, "no stream finished: nothing was tested")
	}
	return out
}
