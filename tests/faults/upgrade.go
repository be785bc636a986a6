package faults

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/faults/history"
)

// Upgrade is a rolling upgrade under load: every process of a cluster is replaced, one after the other, while clients
// stream answers through a load balancer.
type Upgrade struct {
	// From and To are folders of the programs before and after; empty = bin of the checkout.
	From, To string
	// Store is --registry of two gateways. Empty: there is one gateway with a registry of its own, which the new one runs
	// beside for a while.
	Store string
	// Drains says that the cluster before has tandem drain; else workers get SIGTERM.
	Drains bool
	// Clients, Tokens, Asks, Seed, Slack, History, Log and Logs are those of a campaign.
	Config
}

// Upgraded is what an upgrade showed.
type Upgraded struct {
	*history.Report
	Seconds float64 `json:"seconds"`
	Steps   []Step  `json:"steps"`
}

// Step is the replacement of one process.
type Step struct {
	Name string `json:"name"`
	// Drain is how long the old process went on, Start how long the new one took to be ready.
	Drain float64 `json:"drain_seconds"`
	Start float64 `json:"start_seconds"`
}

// place is a process of the cluster, whichever version it runs.
type place struct {
	*part
	program string
	args    []string
	ended   chan struct{}
}

// upgrade is a running one.
type upgrade struct {
	*rig
	cfg      Upgrade
	balancer *balancer
	gateways []*place
	workers  []*place
	steps    []Step
}

// endTime is how long a process may take to end, or to be ready.
const endTime = 2 * time.Minute

// RunUpgrade upgrades a cluster. An error means that a process was not replaced as it should be.
func RunUpgrade(ctx context.Context, cfg Upgrade) (*Upgraded, error) {
	root, err := cluster.Root()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tandem-upgrade-")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	u := &upgrade{rig: &rig{cfg: cfg.Config, root: root, dir: dir, ending: make(chan struct{})}, cfg: cfg}
	defer u.close()
	out, err := u.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, u.logs())
	}
	return out, nil
}

func (u *upgrade) run(ctx context.Context) (*Upgraded, error) {
	var err error
	if u.balancer, err = newBalancer(ctx, u.leaves(ctx)); err != nil {
		return nil, err
	}
	if err := u.begin(ctx); err != nil {
		return nil, err
	}
	records, took, err := u.cfg.underLoad(ctx, []string{u.balancer.base}, func(notes *history.Recorder) error {
		return u.replaceAll(ctx, notes)
	})
	if err != nil {
		return nil, err
	}
	limits := u.cfg.limits()
	limit := history.Limit{Gap: limits.Faults[kind{act: kill, role: target}.String()].Gap}
	for _, s := range u.steps {
		limits.Faults["replace "+s.Name] = limit
	}
	return &Upgraded{Report: history.Check(records, limits), Seconds: took.Seconds(), Steps: u.steps}, nil
}

// begin starts the cluster before.
func (u *upgrade) begin(ctx context.Context) error {
	n := 1
	if u.cfg.Store != "" {
		n = 2
	}
	for range n {
		if err := u.addGateway(ctx, u.cfg.From); err != nil {
			return err
		}
	}
	for _, w := range []struct {
		name, role, program string
		args                []string
	}{
		{"draft", draft, "worker-draft", []string{"--model", u.model(draftModel), "--tables", u.model(targetModel)}},
		{"scorer", scorer, "worker-prefill", []string{"--model", u.model(scorerModel)}},
		{"target-1", target, "worker-target", []string{"--model", u.model(targetModel)}},
		{"target-2", target, "worker-target", []string{"--model", u.model(targetModel)}},
	} {
		p, err := u.newPart(ctx, w.name, w.role)
		if err != nil {
			return err
		}
		args := append([]string{"--worker-id", w.name, "--listen", p.address}, w.args...)
		u.workers = append(u.workers, &place{part: p, program: w.program, args: append(args, common()...)})
	}
	for _, w := range u.workers {
		if err := u.launch(w, u.cfg.From); err != nil {
			return err
		}
	}
	return u.ready(ctx)
}

// delayFlag makes a gateway tell health checks that it will end before it does.
const delayFlag = "--shutdown-delay-s"

// leaves tells whether the gateways before know delayFlag.
func (u *upgrade) leaves(ctx context.Context) bool {
	out, err := exec.CommandContext(ctx, u.program(u.cfg.From, "tandem"), "gateway", "--help").Output()
	return err == nil && bytes.Contains(out, []byte(delayFlag))
}

// addGateway starts one more gateway.
func (u *upgrade) addGateway(ctx context.Context, programs string) error {
	p, err := u.newPart(ctx, fmt.Sprint("gateway-", len(u.gateways)), gateway)
	if err != nil {
		return err
	}
	port, err := p.host.freePort()
	if err != nil {
		return err
	}
	p.clients = net.JoinHostPort(p.host.ip, strconv.Itoa(port))
	args := []string{"gateway", "--host", p.host.ip, "--port", strconv.Itoa(port), "--grpc-port=-1",
		"--registry-listen", p.address, "--model", u.model(targetModel), "--prefill-drafter", u.model(scorerModel),
		"--log-level", "info"}
	if u.cfg.Store != "" {
		args = append(args, "--registry", u.cfg.Store)
	}
	if u.balancer.keeps() {
		args = append(args, delayFlag, "1")
	}
	g := &place{part: p, program: "tandem", args: args}
	u.gateways = append(u.gateways, g)
	if err := u.launch(g, programs); err != nil {
		return err
	}
	u.balancer.add(p.clients)
	return nil
}

// launch starts the process of a place. Workers are told of all gateways that there are.
func (u *upgrade) launch(p *place, programs string) (err error) {
	p.programs = programs
	args := p.args
	if p.role != gateway {
		var registries []string
		for _, g := range u.gateways {
			registries = append(registries, g.address)
		}
		args = append([]string{"--gateway", strings.Join(registries, ",")}, args...)
	}
	p.ended, err = u.start(p.part, p.program, args...)
	return err
}

// ready waits until every worker is ready at every gateway, and the balancer knows it.
func (u *upgrade) ready(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, endTime)
	defer stop()
	if err := until(ctx, u.missing); err != nil {
		return err
	}
	u.balancer.check(ctx)
	return nil
}

// missing says which worker is not ready where; nil = all are.
func (u *upgrade) missing(ctx context.Context) error {
	for _, g := range u.gateways {
		c := client.New("http://" + g.clients)
		workers, err := c.Workers(ctx)
		c.HTTP.CloseIdleConnections()
		if err != nil {
			return err
		}
		state := map[string]string{}
		for _, w := range workers {
			state[w.ID] = w.State
		}
		serves := false
		for _, w := range u.workers {
			if u.cfg.Store == "" && w.programs != u.cfg.To && g != u.gateways[0] {
				continue // it was not told of this gateway
			}
			if state[w.name] != "ready" {
				return fmt.Errorf("%s is %q at %s", w.name, state[w.name], g.name)
			}
			serves = serves || w.role == target
		}
		if serves && !u.balancer.ready(ctx, g.clients) {
			return fmt.Errorf("%s is not ready", g.name)
		}
	}
	return nil
}

// replaceAll replaces the draft, the scorer, the targets and the gateways.
func (u *upgrade) replaceAll(ctx context.Context, notes *history.Recorder) error {
	old := len(u.gateways)
	if u.cfg.Store == "" {
		// Workers that come after the new gateway join it as well as the old one.
		if err := u.addGateway(ctx, u.cfg.To); err != nil {
			return err
		}
	}
	for i, p := range append(append([]*place(nil), u.workers...), u.gateways[:old]...) {
		notes.Add(history.Record{Kind: history.Fault, Fault: i + 1, Type: "replace " + p.name, Part: p.name})
		began := time.Now()
		if err := u.leave(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		left := time.Now()
		if err := u.launch(p, u.cfg.To); err != nil {
			return err
		}
		if err := u.ready(ctx); err != nil {
			return err
		}
		notes.Add(history.Record{Kind: history.Healed, Fault: i + 1})
		u.steps = append(u.steps, Step{p.name, left.Sub(began).Seconds(), time.Since(left).Seconds()})
		if u.cfg.Log != nil {
			fmt.Fprintf(u.cfg.Log, "%s: ended after %.1f s, the new one is ready %.1f s later\n", p.name,
				left.Sub(began).Seconds(), time.Since(left).Seconds())
		}
	}
	return nil
}

// leave ends the process of a place in order.
func (u *upgrade) leave(ctx context.Context, p *place) error {
	ctx, stop := context.WithTimeout(ctx, endTime)
	defer stop()
	if p.role == gateway || !u.cfg.Drains {
		p.mu.Lock()
		err := p.cmd.Process.Signal(syscall.SIGTERM)
		p.mu.Unlock()
		if err != nil {
			return err
		}
	} else {
		args := []string{"drain", p.name, "--stop", "--server", "http://" + u.gateways[len(u.gateways)-1].clients}
		if p.role == target {
			args = append(args, "--move")
		}
		out, err := exec.CommandContext(ctx, u.program(u.cfg.To, "tandem"), args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("tandem drain: %w\n%s", err, out)
		}
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		return fmt.Errorf("it does not end: %w", ctx.Err())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("it ended with status %d", code)
	}
	return nil
}

// Problems are what an upgrade does not accept.
func (r *Upgraded) Problems(most int) []string {
	return (&Result{Report: r.Report}).Problems(most)
}

// Print writes what an upgrade showed.
func (r *Upgraded) Print(w io.Writer) {
	fmt.Fprintf(w, "%d requests, %d finished, %d tokens: %d lost, %d doubled, %d different; longest pause %.0f ms, "+
		"first token after at most %.0f ms\n", r.Requests, r.Finished, r.Tokens, r.Lost, r.Doubled, r.Different,
		r.longest(), r.First.Max)
}

// longest is the longest pause of a stream, in milliseconds.
func (r *Upgraded) longest() float64 {
	most := r.Quiet.Max
	for _, p := range r.Faults {
		most = max(most, p.Max)
	}
	return most
}
