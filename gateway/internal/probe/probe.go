// Package probe measures the devices of a host as workers use them: through engine processes, with layers of a model.
//
// Two engines are open at a time, one with twice the layers of the other. What both take is the cost of a step; the
// difference is that of the layers. Steps of both take turns, so that other load on the machine meets both alike.
package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/placement"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/device"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/host"
)

// Config says what is measured.
type Config struct {
	Program string   // path of tandem-engine; libraries lie beside it
	Devices []string // nil = those that Devices finds
	// Model is a target whose layers are measured; empty = a small one that is made for it. Steps of a model at hand are
	// predicted more closely from its own layers.
	Model   string
	Threads int           // of the CPU's engine, 0 = one per core
	Budget  time.Duration // of a device, 0 = 20 s; what does not fit is measured fewer than five times
	Name    string        // of the host, empty = the system's
	Address string        // at which other hosts reach it
	// Report is told of what is done; nil = nobody.
	Report func(text string)
}

const (
	defaultBudget = 20 * time.Second
	leastRuns     = 5       // runs of each width, unless the budget ends
	mostRuns      = 31      // raising it costs time on fast devices
	mostBytes     = 2 << 30 // of the layers of both engines together, as a model may be larger than a device
	attended      = 2048    // cached positions at which attention is measured
	pending       = 64      // rows that a step may leave uncommitted
	prompt        = 512
)

// rows are the widths of steps that are measured.
var rows = []int{1, 4, 8, 16, 23, 32, pending, prompt}

// Host measures the devices of this host.
func Host(ctx context.Context, cfg Config) (*placement.Host, error) {
	if cfg.Budget == 0 {
		cfg.Budget = defaultBudget
	}
	if cfg.Report == nil {
		cfg.Report = func(string) {}
	}
	names := cfg.Devices
	if names == nil {
		names = Devices(os.DirFS("/"), filepath.Dir(cfg.Program))
	}
	path := cfg.Model
	if path == "" {
		dir, err := os.MkdirTemp("", "tandem-probe")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		path = filepath.Join(dir, "probe.gguf")
		if err := writeModel(path); err != nil {
			return nil, err
		}
	}
	model, err := placement.ReadModel(path)
	if err != nil {
		return nil, err
	}
	out := &placement.Host{Name: cfg.Name, Address: cfg.Address}
	if out.Name == "" {
		if out.Name, err = os.Hostname(); err != nil {
			return nil, err
		}
	}
	for _, text := range names {
		b, err := newBench(cfg, model, text)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out.Devices, func(d placement.Device) bool { return d.Name == b.name.String() }) {
			continue
		}
		cfg.Report(fmt.Sprintf("measuring %s", b.name))
		d, err := b.measure(ctx)
		if err != nil {
			return nil, fmt.Errorf("device %s: %w", b.name, err)
		}
		out.Devices = append(out.Devices, *d)
		if b.border != nil && out.Border == nil {
			out.Border = b.border
		}
	}
	if len(out.Devices) == 0 {
		return nil, errors.New("no device has an engine library here: make build")
	}
	return out, nil
}

// bench measures one device.
type bench struct {
	cfg    Config
	host   *host.Host
	name   device.Name
	model  *placement.Model
	border *placement.Path
	until  time.Time
}

// subject is an open engine with a sequence.
type subject struct {
	engine.Target
	seq         engine.Sequence
	info        engine.Info
	first, last int
	step        engine.Step
	result      engine.StepResult
}

func (b *bench) measure(ctx context.Context) (_ *placement.Device, err error) {
	layers := len(b.model.Layers)
	free, card, err := b.ask(ctx)
	if err != nil {
		return nil, err
	}
	half := b.depth(min(int64(free)/3, mostBytes))
	one, err := b.open(ctx, 0, half)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, one.Close()) }()
	two, err := b.open(ctx, 0, min(2*half, layers))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, two.Close()) }()
	b.until = time.Now().Add(b.cfg.Budget)

	found := Times{Model: b.model, Half: half, Whole: two.last}
	for i, n := range rows {
		t, err := b.turns(ctx, time.Until(b.until)/time.Duration(len(rows)+2-i), n, one, two)
		if err != nil {
			return nil, err
		}
		found.Rows = append(found.Rows, RowTimes{n, t[0], t[1]})
	}
	if found.Context = min(attended, two.info.MaxContext-prompt); found.Context > 0 {
		if err := two.fill(ctx, found.Context); err != nil {
			return nil, err
		}
		t, err := b.turns(ctx, time.Until(b.until), pending, two)
		if err != nil {
			return nil, err
		}
		found.Attended = t[0]
	}
	cost := found.Cost()
	if b.name.Backend == "cpu" && 2*half <= layers {
		if b.border, err = b.crossing(ctx, one, two, cost); err != nil {
			return nil, err
		}
	}
	return &placement.Device{Name: b.name.String(), Card: card, Memory: b.total(card, free), Free: config.Size(free),
		Cost: cost, Origin: placement.Measured}, nil
}

// Refresh brings the free memory of a host that was measured earlier up to date.
func Refresh(ctx context.Context, cfg Config, h *placement.Host) error {
	model, err := placement.ReadModel(cfg.Model)
	if err != nil {
		return err
	}
	for i := range h.Devices {
		d := &h.Devices[i]
		b, err := newBench(cfg, model, d.Name)
		if err != nil {
			return err
		}
		free, _, err := b.ask(ctx)
		if err != nil {
			return fmt.Errorf("device %s: %w", d.Name, err)
		}
		d.Free = config.Size(free)
		d.Memory = max(d.Memory, d.Free)
	}
	return nil
}

func newBench(cfg Config, model *placement.Model, text string) (*bench, error) {
	name, err := device.Parse(text)
	if err != nil {
		return nil, err
	}
	library, err := device.FindLibrary(filepath.Dir(cfg.Program), name)
	if err != nil {
		return nil, err
	}
	h, err := host.NewHost(host.HostConfig{Program: cfg.Program, Library: library})
	if err != nil {
		return nil, err
	}
	return &bench{cfg: cfg, host: h, name: name, model: model}, nil
}

// ask opens the least engine to learn what the device is and how much of it is free.
func (b *bench) ask(ctx context.Context) (free uint64, card string, err error) {
	// The deepest layer alone has neither table on most models, and takes the least.
	s, err := b.open(ctx, 0, 1)
	if err != nil {
		return 0, "", err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	stats, err := s.Memory(ctx)
	if err != nil {
		return 0, "", err
	}
	for _, st := range stats {
		if st.Name == "cap_bytes" {
			free = st.Value
		}
	}
	return free, s.info.Device, nil
}

// total memory of a device: what is free where only the driver knows more.
func (b *bench) total(card string, free uint64) config.Size {
	if b.name.Backend == "cpu" {
		return max(hostMemory(), config.Size(free))
	}
	if c, ok := placement.CardNamed(card); ok {
		return max(c.Memory, config.Size(free))
	}
	return config.Size(free)
}

// depth is the number of layers of which twice as many take at most so many bytes, at least one: half of the model
// where all of it does.
func (b *bench) depth(room int64) int {
	n := len(b.model.Layers)
	half := max(1, n/2)
	for ; half > 1; half-- {
		bytes := b.model.TargetMemory(0, min(2*half, n), placement.Room{Context: attended + prompt, Lanes: 1, KV: "f16",
			Threads: int64(b.cfg.Threads)}, nil, false).Total()
		if bytes <= room {
			break
		}
	}
	return half
}

func (b *bench) open(ctx context.Context, first, last int) (_ *subject, err error) {
	s := &subject{first: first, last: last}
	o := engine.OpenOptions{ModelPath: b.model.Path, Device: b.name.String(), Threads: b.cfg.Threads, MaxSequences: 1,
		MaxContext: min(attended+prompt, int(b.model.Context)), LayerFirst: first, LayerLast: last,
		KVTypeK: engine.KVDefault, KVTypeV: engine.KVDefault}
	if s.Target, err = b.host.OpenTarget(ctx, o, nil); err != nil {
		return nil, err
	}
	s.info = s.Info()
	if s.seq, err = s.NewSequence(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// usual is the time of a run: the lower quartile. Other load only ever adds to times, so that their median would hold
// some of it.
func usual(times []float64) float64 {
	slices.Sort(times)
	return times[len(times)/4]
}

// turns measures steps of n rows of some engines, one after the other, and returns the usual time of each. A model that
// fits the processor's cache stays there while it is served, and the other engine's step has driven it out: a step that
// is not counted brings it back. Prompts are bound by arithmetic.
func (b *bench) turns(ctx context.Context, budget time.Duration, n int, all ...*subject) ([]float64, error) {
	times := make([][]float64, len(all))
	begin := time.Now()
	for run := range mostRuns + 1 {
		for i, s := range all {
			if len(all) > 1 && n <= pending {
				if _, err := s.run(ctx, n); err != nil {
					return nil, err
				}
			}
			took, err := s.run(ctx, n)
			if err != nil {
				return nil, err
			}
			if run > 0 { // the first one warms up
				times[i] = append(times[i], took.Seconds())
			}
		}
		spent := time.Since(begin)
		if run >= leastRuns && spent > budget/4 || run > 0 && spent > budget {
			break
		}
	}
	out := make([]float64, len(all))
	for i, t := range times {
		out[i] = usual(t)
	}
	return out, nil
}

// run is a step of n rows after what the sequence holds, which are dropped again.
func (s *subject) run(ctx context.Context, n int) (time.Duration, error) {
	commits := n > pending
	if commits { // only committed rows may be as many: they go to a sequence of their own
		if err := s.renew(ctx); err != nil {
			return 0, err
		}
	}
	length, err := s.SequenceLength(ctx, s.seq)
	if err != nil {
		return 0, err
	}
	s.prepare(n, length, commits)
	begin := time.Now()
	if err := s.Step(ctx, &s.step, &s.result); err != nil {
		return 0, err
	}
	return time.Since(begin), nil
}

// renew gives the engine an empty sequence.
func (s *subject) renew(ctx context.Context) error {
	if err := s.FreeSequence(ctx, s.seq); err != nil {
		return err
	}
	var err error
	s.seq, err = s.NewSequence(ctx)
	return err
}

// fill commits so many positions.
func (s *subject) fill(ctx context.Context, n int) error {
	if err := s.renew(ctx); err != nil {
		return err
	}
	for at := 0; at < n; at += prompt {
		s.prepare(min(prompt, n-at), at, true)
		if err := s.Step(ctx, &s.step, &s.result); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes a step of a chain of n rows at a length.
func (s *subject) prepare(n, length int, commits bool) {
	last := s.last == s.info.Layers
	g := engine.Group{Sequence: s.seq, Rows: n, Commit: commits}
	if commits && s.info.PromptRows > 0 && n > s.info.PromptRows {
		g.Kind = engine.KindPrompt
	}
	s.step = engine.Step{Groups: []engine.Group{g}, Rows: s.step.Rows[:0], HiddenIn: s.step.HiddenIn}
	for i := range n {
		r := engine.Row{Token: int32((length + 37*i + 1) % s.info.Vocab), Position: int32(length + i),
			Parent: int32(i - 1), Mask: -1, Score: -1}
		if last && !commits {
			r.Want = engine.WantToken
		}
		s.step.Rows = append(s.step.Rows, r)
	}
}

// crossing measures what it costs that rows go from one engine to the next: two engines with half of the layers each
// against one with all.
func (b *bench) crossing(ctx context.Context, one, two *subject, cost *placement.Cost) (_ *placement.Path, err error) {
	rest, err := b.open(ctx, one.last, two.last)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rest.Close()) }()
	if err := errors.Join(one.renew(ctx), two.renew(ctx)); err != nil {
		return nil, err
	}
	var extra [2]float64
	for i, n := range []int{1, pending} {
		var both, whole []float64
		for range leastRuns * 2 {
			first, err := one.run(ctx, n)
			if err != nil {
				return nil, err
			}
			rest.step.HiddenIn = one.result.HiddenOut
			second, err := rest.run(ctx, n)
			if err != nil {
				return nil, err
			}
			all, err := two.run(ctx, n)
			if err != nil {
				return nil, err
			}
			both, whole = append(both, (first+second).Seconds()), append(whole, all.Seconds())
		}
		extra[i] = usual(both) - usual(whole) - cost.StepUS*1e-6
	}
	// Both are small differences of large numbers: bounds keep noise from making a border free or a wall.
	out := &placement.Path{RoundTripUS: max(extra[0]*1e6, 5), Origin: placement.Measured}
	bytes := float64((pending - 1) * b.model.Hidden * 4)
	out.GBs = min(max(bytes/max(extra[1]-extra[0], 1e-9)/1e9, 0.2), 20)
	return out, nil
}
