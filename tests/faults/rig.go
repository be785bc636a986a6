package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/etcd"
	"github.com/tandem-inference/tandem/tests/faults/link"
)

// Roles of parts, which faults are chosen for.
const (
	gateway = "gateway"
	target  = "target" // has all layers
	head    = "head"   // has the first layers
	stage   = "stage"  // has the last layers
	draft   = "draft"
	scorer  = "scorer"
)

// part is a program of the cluster with its links.
type part struct {
	name, role string
	dir        string // TMPDIR of its processes
	programs   string // folder of its program; empty = bin of the checkout
	host       *host
	address    string // where others of the cluster reach it, without its link
	// clients is where a gateway serves them.
	clients string
	// in is the link at which others reach it, out those from it to the registries of gateways.
	in  *link.Link
	out []*link.Link
	log *logFile

	mu  sync.Mutex // guards cmd
	cmd *exec.Cmd
}

// rig is a cluster of separate processes: gateways, a target, a target of two stages, a draft and a scorer, each behind
// links. Workers run under their own supervisors, gateways are started again by the rig.
type rig struct {
	cfg   Config
	root  string
	dir   string
	hosts []*host
	parts []*part
	links uint64       // made so far
	store *etcd.Server // of several gateways
	group sync.WaitGroup
	// ending is closed when gateways are not started again.
	ending chan struct{}
}

// logFile is a file that several processes write to in turn.
type logFile struct {
	path string
	file *os.File
}

const (
	targetModel = "tandem-tiny-target-q4_k_m.gguf"
	draftModel  = "tandem-tiny-draft-q8_0.gguf"
	scorerModel = "tandem-tiny-prefill-q8_0.gguf"
)

// startRig starts all parts. Errors hold the end of the logs.
func startRig(ctx context.Context, cfg Config) (r *rig, err error) {
	root, err := cluster.Root()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "tandem-faults-")
	if err != nil {
		return nil, err
	}
	r = &rig{cfg: cfg, root: root, dir: dir, ending: make(chan struct{})}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, r.logs())
			r.close()
		}
	}()
	if cfg.Gateways > 1 {
		if err := r.openStore(ctx); err != nil {
			return r, err
		}
	}
	for n := range cfg.Gateways {
		p, err := r.newPart(ctx, fmt.Sprint("gateway-", n), gateway)
		if err != nil {
			return r, err
		}
		if err := r.startGateway(p); err != nil {
			return r, err
		}
	}
	if err := r.startWorkers(ctx); err != nil {
		return r, err
	}
	return r, until(ctx, r.unfit)
}

// openStore starts the etcd of several gateways, and makes the authority that they have together.
func (r *rig) openStore(ctx context.Context) (err error) {
	ip := loopback().ip
	if r.cfg.Namespaces {
		ip = "0.0.0.0" // hosts reach it at their gates
		if err := command(ctx, "", "ip", "link", "set", "lo", "up"); err != nil {
			return err
		}
	}
	if r.store, err = etcd.Open(filepath.Join(r.dir, "etcd"), ip); err != nil {
		return err
	}
	return command(ctx, "", r.program("", "tandem"), "certs", "init", "--authority", r.authority())
}

// pollTime is the pause between two looks at the cluster: more of it finds later that a fault is healed.
const pollTime = 100 * time.Millisecond

// until waits until a cluster is as it should be: why says what is missing.
func until(ctx context.Context, why func(ctx context.Context) error) error {
	for {
		missing := why(ctx)
		if missing == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cluster is not ready: %w", missing)
		case <-time.After(pollTime):
		}
	}
}

// newPart makes a part with a host and an address, and a link to it.
func (r *rig) newPart(ctx context.Context, name, role string) (*part, error) {
	p := &part{name: name, role: role, dir: filepath.Join(r.dir, name), host: loopback()}
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		return nil, err
	}
	r.parts = append(r.parts, p)
	if r.cfg.Namespaces {
		h, err := newHost(ctx, len(r.hosts)+1)
		if h != nil {
			r.hosts = append(r.hosts, h)
		}
		if err != nil {
			return nil, err
		}
		p.host = h
	}
	file, err := os.Create(filepath.Join(r.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	p.log = &logFile{file.Name(), file}
	port, err := p.host.freePort()
	if err != nil {
		return nil, err
	}
	p.address = net.JoinHostPort(p.host.ip, strconv.Itoa(port))
	if role != gateway {
		p.in, err = r.link(p, p.address)
	}
	return p, err
}

// link makes a link beside a part's host: all hosts reach it there.
func (r *rig) link(p *part, server string) (*link.Link, error) {
	r.links++
	return link.Listen(net.JoinHostPort(p.host.gate(), "0"), server, r.cfg.Seed+r.links)
}

// registries makes links from a host to the registry of every gateway and returns their addresses, with commas between
// them.
func (r *rig) registries(p *part) (string, error) {
	var addresses []string
	for _, g := range r.parts {
		if g.role != gateway {
			continue
		}
		l, err := r.link(p, g.address)
		if err != nil {
			return "", err
		}
		p.out = append(p.out, l)
		addresses = append(addresses, l.Address())
	}
	return strings.Join(addresses, ","), nil
}

func (r *rig) authority() string { return filepath.Join(r.dir, "authority") }
func (r *rig) token() string     { return filepath.Join(r.dir, "token") }
func (r *rig) model(name string) string {
	return filepath.Join(r.root, "models", name)
}

// program is the path of a program in a folder; empty = bin of the checkout.
func (r *rig) program(folder, name string) string {
	return filepath.Join(cmp.Or(folder, filepath.Join(r.root, "bin")), name)
}

// common are the flags of all workers.
func common() []string {
	return []string{"--parent-pid", strconv.Itoa(os.Getpid()), "--threads", "1", "--max-ctx", "4096", "--lanes", "8",
		"--log-level", "info"}
}

// clientPort is the HTTP port of gateways: on hosts of their own always the same.
func (r *rig) clientPort(p *part) (int, error) {
	if r.cfg.Namespaces {
		return 8000, nil
	}
	return p.host.freePort()
}

func (r *rig) startGateway(p *part) error {
	port, err := r.clientPort(p)
	if err != nil {
		return err
	}
	args := []string{"gateway", "--host", p.host.ip, "--port", strconv.Itoa(port), "--grpc-port=-1",
		"--registry-listen", p.address, "--authority", r.authority(),
		"--model", r.model(targetModel), "--prefill-drafter", r.model(scorerModel),
		"--api-key", apiKey, "--log-level", "info"}
	if len(r.of(gateway)) == 1 { // one token is for all gateways
		args = append(args, "--join-token-output", r.token())
	}
	if r.store != nil {
		_, port, err := net.SplitHostPort(r.store.Endpoint)
		if err != nil {
			return err
		}
		args = append(args, "--registry", "etcd://"+net.JoinHostPort(p.host.gate(), port)+"/faults")
	}
	args = append(args, r.cfg.GatewayArgs...)
	p.clients = net.JoinHostPort(p.host.ip, strconv.Itoa(port))
	running := make(chan error, 1)
	r.group.Go(func() {
		for first := true; ; first = false {
			ended, err := r.start(p, "tandem", args...)
			if first {
				running <- err
			}
			if err != nil {
				return
			}
			<-ended
			select {
			case <-r.ending:
				return
			case <-time.After(r.cfg.GatewayPause):
			}
		}
	})
	return <-running
}

// apiKey is the one of clients: gateways in namespaces are reached from other hosts.
const apiKey = "campaign"

// start runs a program of bin/ on the host of a part. The channel is closed when it has ended.
func (r *rig) start(p *part, program string, args ...string) (ended chan struct{}, err error) {
	line := p.host.inside(append([]string{r.program(p.programs, program)}, args...)...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "TMPDIR="+p.dir, "XDG_CACHE_HOME="+filepath.Join(r.dir, "cache"),
		"XDG_CONFIG_HOME="+p.dir)
	cmd.Stdout, cmd.Stderr = p.log.file, p.log.file
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // workers watch this process themselves as well
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.cmd = cmd
	p.mu.Unlock()
	ended = make(chan struct{})
	r.group.Go(func() {
		_ = cmd.Wait()
		close(ended)
	})
	return ended, nil
}

// startWorkers starts a target, a stage, the target that is its head, a draft and a scorer.
func (r *rig) startWorkers(ctx context.Context) error {
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(r.token()); err == nil {
			break
		} else if time.Now().After(until) || ctx.Err() != nil {
			return fmt.Errorf("the gateway writes no join token: %w", err)
		}
	}
	lastLayers, err := r.newPart(ctx, "stage", stage)
	if err != nil {
		return err
	}
	certs := filepath.Join(r.dir, "stage-certs")
	issue := exec.CommandContext(ctx, r.program("", "tandem"), "certs", "issue", "target", "stage", certs,
		"--authority", r.authority(), "--life", "240h")
	if out, err := issue.CombinedOutput(); err != nil {
		return fmt.Errorf("certificate of the stage: %w: %s", err, out)
	}
	common := append([]string{"--supervise", "--hang-timeout", r.cfg.HangTimeout.String()}, common()...)
	if _, err := r.start(lastLayers, "worker-target", append([]string{"--stage", "2/2", "--model", r.model(targetModel),
		"--target-layer-split", "5,3", "--listen", lastLayers.address, "--certs", certs}, common...)...); err != nil {
		return err
	}
	for _, w := range []struct {
		name, role, program string
		args                []string
	}{
		{"target", target, "worker-target", []string{"--model", r.model(targetModel), "--draft-transport", "grpc"}},
		{"head", head, "worker-target", []string{"--model", r.model(targetModel), "--draft-transport", "grpc",
			"--target-stages", lastLayers.in.Address(), "--target-layer-split", "5,3"}},
		{"draft", draft, "worker-draft", []string{"--model", r.model(draftModel), "--tables", r.model(targetModel)}},
		{"scorer", scorer, "worker-prefill", []string{"--model", r.model(scorerModel)}},
	} {
		p, err := r.newPart(ctx, w.name, w.role)
		if err != nil {
			return err
		}
		registries, err := r.registries(p)
		if err != nil {
			return err
		}
		args := append([]string{"--worker-id", w.name, "--gateway", registries, "--listen", p.address, "--advertise",
			p.in.Address(), "--certs", filepath.Join(p.dir, "certs"), "--join-token-file", r.token()}, w.args...)
		if _, err := r.start(p, w.program, append(args, common...)...); err != nil {
			return err
		}
	}
	return nil
}

// of returns the parts of a role.
func (r *rig) of(role string) (out []*part) {
	for _, p := range r.parts {
		if p.role == role {
			out = append(out, p)
		}
	}
	return out
}

// bases are the URLs of the gateways.
func (r *rig) bases() (out []string) {
	for _, g := range r.of(gateway) {
		out = append(out, "http://"+g.clients)
	}
	return out
}

// pid finds a process of a part: its engine, or the worker or gateway itself, not its supervisor. 0 = there is none.
func (p *part) pid(engine bool) int {
	p.mu.Lock()
	first := p.cmd.Process.Pid
	p.mu.Unlock()
	if p.role == gateway {
		return first
	}
	for _, q := range cluster.ProcessesOf(p.dir) {
		if q.PID != first && (q.Name == "tandem-engine") == engine {
			return q.PID
		}
	}
	return 0
}

// unfit says why the cluster is not whole; nil = all parts work.
func (r *rig) unfit(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	for _, base := range r.bases() {
		c := client.New(base)
		c.Key = apiKey
		workers, err := c.Workers(ctx)
		c.HTTP.CloseIdleConnections()
		if err != nil {
			return err
		}
		for _, role := range []string{target, head, draft, scorer} {
			at := slices.IndexFunc(workers, func(w client.Worker) bool { return w.ID == role })
			if at < 0 {
				return fmt.Errorf("%s has not joined %s", role, base)
			}
			if state := workers[at].State; state != "ready" {
				return fmt.Errorf("%s is %s at %s", role, state, base)
			}
		}
	}
	return nil
}

// logs are the ends of the parts' logs.
func (r *rig) logs() string {
	var out strings.Builder
	for _, p := range r.parts {
		if p.log == nil {
			continue
		}
		data, _ := os.ReadFile(p.log.path)
		fmt.Fprintf(&out, "---- %s\n%s\n", p.name, data[max(0, len(data)-4<<10):])
	}
	return out.String()
}

// close kills all processes, waits for them and removes their files, or moves the logs into a folder.
func (r *rig) close() {
	close(r.ending)
	for _, p := range r.parts {
		for range 500 {
			left := cluster.ProcessesOf(p.dir)
			for _, q := range left {
				_ = syscall.Kill(q.PID, syscall.SIGKILL)
			}
			if len(left) == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if p.in != nil {
			p.in.Close()
		}
		for _, l := range p.out {
			l.Close()
		}
		if p.log != nil {
			_ = p.log.file.Close()
		}
	}
	r.group.Wait()
	if r.store != nil {
		r.store.Stop()
	}
	for _, h := range r.hosts {
		h.close()
	}
	if r.cfg.Logs != "" {
		for _, p := range r.parts {
			_ = copyFile(filepath.Join(r.cfg.Logs, p.name+".log"), filepath.Join(r.dir, p.name+".log"))
		}
	}
	_ = os.RemoveAll(r.dir)
}

func copyFile(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
