package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/placement"
	"github.com/tandem-inference/tandem/gateway/internal/probe"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/device"
	"github.com/tandem-inference/tandem/services/kvtype"
)

// usualContext is the context that is planned for when none is given, in tokens; at most the model's.
const usualContext = 32768

// PlanCmd is tandem plan.
type PlanCmd struct {
	Target     string         `arg:"" type:"path" help:"Target model: a GGUF file, the name of a pulled one, or a description (.json) of one that is not at hand."`
	Draft      string         `type:"path" placeholder:"PATH" help:"DFlash draft of the target, or a description of one."`
	Scorer     string         `type:"path" placeholder:"PATH" env:"-" help:"Scorer that compresses prompts, or a description of one."`
	Rig        string         `type:"existingfile" placeholder:"FILE" env:"-" help:"Hosts, devices and links, as tandem probe --out writes them; default: this host is measured."`
	MaxCtx     config.Context `default:"auto" placeholder:"TOKENS" help:"Longest context that must fit, in tokens; auto = 32768, or the model's if that is shorter."`
	Concurrent int64          `default:"1" env:"-" help:"Requests at a time."`
	Prompt     int64          `default:"4096" env:"-" help:"Prompt tokens of the request for which layouts are compared."`
	Answer     int64          `default:"512" env:"-" help:"Answer tokens of that request."`
	Accepted   float64        `default:"4" env:"-" help:"Assumption: tokens that a round keeps of a chain as long as the draft's block, its own included."`
	JSON       bool           `name:"json" env:"-" help:"Print the results as JSON."`

	On       []string `placeholder:"NAME,…" env:"-" help:"Devices that the target must run on, in the order of its layers: cuda:0,hip:0, or HOST/cuda:0 of other hosts. Default: the fastest are found."`
	Split    string   `default:"auto" placeholder:"N,…" env:"-" help:"Layers of each device of --on, such as 40,24; auto = the fastest split is found."`
	DraftOn  string   `placeholder:"NAME" env:"-" help:"Device that the draft must run on."`
	ScorerOn string   `placeholder:"NAME" env:"-" help:"Device that the scorer must run on."`
	KV       string   `name:"kv-format" default:"auto" enum:"${kv_choices}" env:"-" help:"Type of cached keys and values: ${kv_choices}; auto = the first of f16, q8_0, q5_1, q5_0, q4_1, q4_0, tq3_0 that fits."`
	TreeRows int      `default:"0" env:"-" help:"Rows of the trees that a round verifies, 0 = the fastest number is found."`
	ProbeFlags
	StoreFlags
}

// Validate resolves pulled models and checks numbers.
func (c *PlanCmd) Validate() error {
	if err := c.StoreFlags.resolveAll(&c.Target, &c.Draft, &c.Scorer); err != nil {
		return err
	}
	var problems []error
	for _, f := range []struct{ flag, path string }{{"target", c.Target}, {"--draft", c.Draft}, {"--scorer", c.Scorer}} {
		if f.path == "" {
			continue
		}
		if _, err := os.Stat(f.path); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", f.flag, err))
		}
	}
	if c.DraftOn != "" && c.Draft == "" {
		problems = append(problems, errors.New("--draft-on: needs --draft"))
	}
	if c.ScorerOn != "" && c.Scorer == "" {
		problems = append(problems, errors.New("--scorer-on: needs --scorer"))
	}
	return errors.Join(problems...)
}

// Run makes and prints a plan.
func (c *PlanCmd) Run(e *env) error {
	task := placement.Task{Lanes: c.Concurrent, Prompt: c.Prompt, Answer: c.Answer, Accepted: c.Accepted,
		Context: int64(c.MaxCtx)}
	if err := readModels(&task, trio{c.Target, c.Draft, c.Scorer}); err != nil {
		return err
	}
	rig, err := c.rig(e)
	if err != nil {
		return err
	}
	if err := c.fix(rig, &task); err != nil {
		return err
	}
	plan, err := placement.Search(rig, &task)
	if err != nil {
		return err
	}
	if c.JSON {
		out := json.NewEncoder(e.out)
		out.SetIndent("", "  ")
		out.SetEscapeHTML(false)
		return out.Encode(plan)
	}
	return plan.Text(e.out)
}

// rig reads the rig, or measures this host.
func (c *PlanCmd) rig(e *env) (*placement.Rig, error) {
	if c.Rig != "" {
		data, err := os.ReadFile(c.Rig)
		if err != nil {
			return nil, fmt.Errorf("--rig: %w", err)
		}
		rig, err := placement.ParseRig(data)
		if err != nil {
			return nil, fmt.Errorf("--rig: %s: %w", c.Rig, err)
		}
		return rig, nil
	}
	program, err := c.program()
	if err != nil {
		return nil, err
	}
	cfg := probe.Config{Program: program, Threads: c.Threads}
	if !strings.HasSuffix(c.Target, ".json") {
		cfg.Model = c.Target
	}
	return measure(e.ctx, e.err, cfg)
}

// fix resolves the parts of the layout that flags state.
func (c *PlanCmd) fix(rig *placement.Rig, task *placement.Task) (err error) {
	f := &task.Fixed
	if f.Stages, err = placesOf(rig, "--on", c.On); err != nil {
		return err
	}
	if f.Split, err = splitOf("--split", c.Split, len(f.Stages), len(task.Target.Layers)); err != nil {
		return err
	}
	if f.Draft, err = placeOf(rig, "--draft-on", c.DraftOn); err != nil {
		return err
	}
	if f.Scorer, err = placeOf(rig, "--scorer-on", c.ScorerOn); err != nil {
		return err
	}
	if c.KV != kvtype.Auto {
		f.KV = c.KV
	}
	f.TreeRows = c.TreeRows
	return nil
}

// readModels reads the models of a task and completes its context.
func readModels(task *placement.Task, models trio) (err error) {
	for _, m := range []struct {
		flag, path string
		to         **placement.Model
	}{{"target", models.target, &task.Target}, {"--draft", models.draft, &task.Draft},
		{"scorer", models.prefill, &task.Scorer}} {
		if m.path == "" {
			continue
		}
		if *m.to, err = placement.ReadModel(m.path); err != nil {
			return fmt.Errorf("%s: %w", m.flag, err)
		}
	}
	if task.Context == 0 {
		task.Context = min(usualContext, task.Target.Context)
	}
	// The reference request fits the context.
	task.Prompt = min(task.Prompt, max(1, task.Context-task.Answer))
	return nil
}

// placesOf finds devices of a rig.
func placesOf(rig *placement.Rig, flag string, names []string) (out []placement.Place, err error) {
	for _, name := range names {
		p, err := placeOf(rig, flag, name)
		if err != nil {
			return nil, err
		}
		out = append(out, *p)
	}
	return out, nil
}

// placeOf finds a device by its name, of the first host or of the one named before a slash; nil of no name.
func placeOf(rig *placement.Rig, flag, name string) (*placement.Place, error) {
	if name == "" {
		return nil, nil
	}
	h, at := 0, name
	if host, rest, found := strings.Cut(name, "/"); found {
		at = rest
		if h = slices.IndexFunc(rig.Hosts, func(h placement.Host) bool { return h.Name == host }); h < 0 {
			return nil, fmt.Errorf("%s: the rig has no host %q", flag, host)
		}
	}
	parsed, err := device.Parse(at)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	d := slices.IndexFunc(rig.Hosts[h].Devices, func(d placement.Device) bool { return d.Name == parsed.String() })
	if d < 0 {
		return nil, fmt.Errorf("%s: host %s has no device %s", flag, rig.Hosts[h].Name, parsed)
	}
	return &placement.Place{Host: h, Device: d}, nil
}

// splitOf reads the layers of stages; nil of auto.
func splitOf(flag, text string, stages, layers int) ([]int, error) {
	if text == "" || text == "auto" {
		return nil, nil
	}
	if stages == 0 {
		return nil, fmt.Errorf("%s: needs the devices", flag)
	}
	var counts []int
	sum := 0
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s: wants layers for each device such as 40,24, or auto, got %q", flag, text)
		}
		counts, sum = append(counts, n), sum+n
	}
	if len(counts) != stages || sum != layers {
		return nil, fmt.Errorf("%s: %s are %d layers of %d stages, the model has %d for %d", flag, text, sum, len(counts),
			layers, stages)
	}
	return counts, nil
}

// apply sets the flags of workers that make a plan for this host; those that keep names stay as the user gave them.
func (w *WorkerFlags) apply(p *placement.Plan, keep func(flag string) bool) {
	l := &p.Best.Layout
	name := func(at placement.Place) string { return p.Rig.Hosts[at.Host].Devices[at.Device].Name }
	if !keep("target-device") && !keep("target-devices") {
		w.TargetDevice, w.TargetDevices = "", nil
		if len(l.Stages) == 1 {
			w.TargetDevice = name(l.Stages[0].Place)
		} else {
			for _, st := range l.Stages {
				w.TargetDevices = append(w.TargetDevices, name(st.Place))
			}
		}
	}
	if len(w.TargetDevices) > 1 && !keep("target-layer-split") {
		var split []string
		for _, st := range l.Stages {
			split = append(split, strconv.Itoa(st.Last-st.First))
		}
		w.TargetLayerSplit = strings.Join(split, ",")
	}
	if l.Draft != nil && !keep("draft-device") {
		w.DraftDevice = name(*l.Draft)
	}
	if l.Scorer != nil && !keep("prefill-device") {
		w.PrefillDevice = name(*l.Scorer)
	}
	if !keep("max-ctx") {
		w.MaxCtx = config.Context(p.Task.Context)
	}
	if !keep("lanes") {
		w.Lanes = int(p.Most)
	}
	for _, f := range []struct {
		flag string
		to   *string
	}{{"cache-type-k", &w.CacheTypeK}, {"cache-type-v", &w.CacheTypeV}, {"draft-cache-type", &w.DraftCache}} {
		if !keep(f.flag) {
			*f.to = l.KV
		}
	}
	if l.TreeRows > 1 && !keep("ddtree-budget") {
		w.DDTreeBudget = l.TreeRows - 1
	}
}
