package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.uber.org/zap"

	"github.com/tandem-inference/tandem/gateway/internal/placement"
	"github.com/tandem-inference/tandem/gateway/internal/probe"
	"github.com/tandem-inference/tandem/services/device"
	"github.com/tandem-inference/tandem/services/gguf"
	"github.com/tandem-inference/tandem/services/kvtype"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/wholefile"
	"github.com/tandem-inference/tandem/services/workernode"
)

// AfterApply notes which flags have a value that the user gave: on the command line, in a file or in a variable.
func (c *ServeCmd) AfterApply(ctx *kong.Context) error {
	for _, step := range ctx.Path {
		if step.Flag != nil {
			c.given = append(c.given, step.Flag.Name)
		}
	}
	for _, flag := range ctx.Flags() {
		for _, name := range flag.Envs {
			if _, set := os.LookupEnv(name); set {
				c.given = append(c.given, flag.Name)
			}
		}
	}
	c.unheeded = unheeded(ctx.Flags(), os.Environ())
	return nil
}

// keeps reports whether the user gave a flag.
func (c *ServeCmd) keeps(flag string) bool { return slices.Contains(c.given, flag) }

// auto plans the layout of models on this host, prints the plan and sets the flags that the user left open.
func (c *ServeCmd) auto(e *env, models *trio, log *zap.Logger) error {
	task := placement.Task{Lanes: max(1, int64(c.Lanes)), Prompt: 4096, Answer: 512, Accepted: 4, Context: int64(c.MaxCtx)}
	if err := readModels(&task, *models); err != nil {
		return err
	}
	rig, err := c.measured(e, models.target, log)
	if err != nil {
		return err
	}
	if err := c.fix(rig, &task); err != nil {
		return err
	}
	// A draft that the user named is used wherever there is room for it; automatic speculation measures what it is worth.
	task.Fixed.UseDraft = task.Draft != nil && c.keeps("draft")
	plan, err := placement.Search(rig, &task)
	if errors.Is(err, placement.ErrNoFit) && task.Fixed.UseDraft && task.Fixed.Draft == nil {
		task.Fixed.UseDraft = false
		plan, err = placement.Search(rig, &task)
	}
	if err != nil {
		return fmt.Errorf("--auto: %w", err)
	}
	c.apply(plan, c.keeps)
	if plan.Best.Layout.Draft == nil {
		models.draft = ""
	}
	if plan.Best.Layout.Scorer == nil {
		models.prefill = ""
	}
	return plan.Text(e.out)
}

// fix resolves the parts of the layout that flags state. --device is for all engines that have no flag of their own.
func (c *ServeCmd) fix(rig *placement.Rig, task *placement.Task) (err error) {
	f := &task.Fixed
	own := func(value string) string {
		if value == "" && c.keeps("device") {
			return c.Device
		}
		return value
	}
	stages := c.TargetDevices
	if len(stages) == 0 && own(c.TargetDevice) != "" {
		stages = []string{own(c.TargetDevice)}
	}
	if f.Stages, err = placesOf(rig, "--target-devices", stages); err != nil {
		return err
	}
	layers := len(task.Target.Layers)
	if f.Split, err = splitOf("--target-layer-split", c.TargetLayerSplit, len(f.Stages), layers); err != nil {
		return err
	}
	if f.Draft, err = placeOf(rig, "--draft-device", own(c.DraftDevice)); err != nil {
		return err
	}
	if f.Scorer, err = placeOf(rig, "--prefill-device", own(c.PrefillDevice)); err != nil {
		return err
	}
	for _, kv := range []struct{ flag, value string }{{"cache-type-k", c.CacheTypeK}, {"cache-type-v", c.CacheTypeV}} {
		if c.keeps(kv.flag) && kv.value != kvtype.Auto {
			f.KV = kv.value
		}
	}
	if c.DDTreeBudget > 0 {
		f.TreeRows = c.DDTreeBudget + 1
	}
	return nil
}

// measured is the rig of this host, measured now or earlier: figures are kept by program, devices and model, but for
// what is free.
func (c *ServeCmd) measured(e *env, model string, log *zap.Logger) (*placement.Rig, error) {
	flags := ProbeFlags{Threads: c.Threads, Engine: c.Engine, Programs: c.Programs}
	program, err := flags.program()
	if err != nil {
		return nil, err
	}
	cfg := probe.Config{Program: program, Model: model, Threads: c.Threads, Devices: c.named()}
	path, err := c.figures(e.ctx, cfg, log)
	if err != nil {
		return nil, err
	}
	if data, err := os.ReadFile(path); err == nil {
		rig, err := placement.ParseRig(data)
		if err == nil && len(rig.Hosts) == 1 {
			return rig, probe.Refresh(e.ctx, cfg, &rig.Hosts[0])
		}
		log.Warn("measuring again: the stored figures cannot be read", zap.NamedError(telemetry.KeyErr, err))
	}
	rig, err := measure(e.ctx, e.err, cfg)
	if err != nil {
		return nil, err
	}
	text, err := rig.JSON()
	if err != nil {
		return nil, err
	}
	err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), wholefile.Write(path, text))
	if err != nil {
		log.Warn("the figures are not kept for the next start", zap.NamedError(telemetry.KeyErr, err))
	}
	return rig, nil
}

// named are the devices that flags state, nil when others are to be found as well.
func (c *ServeCmd) named() []string {
	if c.keeps("device") || len(c.TargetDevices) > 0 || c.TargetDevice != "" {
		var names []string
		for _, program := range []string{workerTarget, workerDraft, workerPrefill} {
			names = append(names, c.devices(program)...)
		}
		return names
	}
	return nil
}

// figures is the file that keeps the figures of a probe.
func (c *ServeCmd) figures(ctx context.Context, cfg probe.Config, log *zap.Logger) (string, error) {
	dir, err := workernode.CacheDir(c.CacheDir)
	if err != nil {
		return "", err
	}
	workernode.RememberDigests(c.CacheDir, log)
	f, err := gguf.Open(cfg.Model)
	if err != nil {
		return "", err
	}
	defer f.Close()
	digest, err := f.Digest(ctx)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	devices := cfg.Devices
	if devices == nil {
		devices = probe.Devices(os.DirFS("/"), filepath.Dir(cfg.Program))
	}
	fmt.Fprintln(h, digest, devices, cfg.Threads)
	programs := []string{cfg.Program}
	for _, name := range devices {
		d, err := device.Parse(name)
		if err != nil {
			return "", err
		}
		if library, err := device.FindLibrary(filepath.Dir(cfg.Program), d); err == nil {
			programs = append(programs, library)
		}
	}
	for _, path := range programs {
		if info, err := os.Stat(path); err == nil {
			fmt.Fprintln(h, info.Size(), info.ModTime().UnixNano())
		}
	}
	// The machine: its processors, and the versions of its drivers. What is not there has no part in the name.
	processors, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(processors)) {
		if strings.HasPrefix(line, "model name") || strings.HasPrefix(line, "flags") {
			fmt.Fprint(h, line)
		}
	}
	for _, path := range []string{"/proc/driver/nvidia/version", "/sys/module/amdgpu/version"} {
		data, _ := os.ReadFile(path)
		fmt.Fprintf(h, "%s\n", data)
	}
	return filepath.Join(dir, "rig-"+hex.EncodeToString(h.Sum(nil))[:16]+".json"), nil
}
