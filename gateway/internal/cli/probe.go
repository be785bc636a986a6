package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/tandem-inference/tandem/gateway/internal/placement"
	"github.com/tandem-inference/tandem/gateway/internal/probe"
	"github.com/tandem-inference/tandem/services/device"
)

// ProbeFlags say what is measured.
type ProbeFlags struct {
	Threads  int    `default:"0" help:"CPU threads of the engine, 0 = one per core."`
	Engine   string `type:"path" placeholder:"PATH" help:"Engine program, its libraries beside it; default: tandem-engine in --programs."`
	Programs string `type:"path" placeholder:"DIR" help:"Folder of the worker programs; default: beside this program."`
}

// program is the engine program.
func (f *ProbeFlags) program() (string, error) {
	if f.Engine != "" {
		return f.Engine, nil
	}
	w := WorkerFlags{Programs: f.Programs}
	dir, err := w.programs()
	return filepath.Join(dir, "tandem-engine"), err
}

// ProbeCmd is tandem probe.
type ProbeCmd struct {
	Model       string   `type:"existingfile" placeholder:"PATH" help:"Target whose layers are measured; default: a small model that is made for it. A plan for a model is closer with figures of its own layers."`
	Device      []string `placeholder:"NAME,…" help:"Devices to measure: cpu, cuda:0, hip:0; default: all that have an engine library here."`
	Out         string   `type:"path" placeholder:"FILE" env:"-" help:"Write the rig to this file, for tandem plan --rig; - for standard output."`
	HostName    string   `placeholder:"NAME" env:"-" help:"Name of this host in the rig; default: the system's."`
	HostAddress string   `placeholder:"HOST" env:"-" help:"Address at which other hosts of a rig reach this one."`
	PeerFlags
	ProbeFlags
}

// Validate reports every setting that cannot work.
func (c *ProbeCmd) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, name := range c.Device {
		if _, err := device.Parse(name); err != nil {
			fail("--device: %w", err)
		}
	}
	if c.Threads < 0 {
		fail("--threads: %d is negative", c.Threads)
	}
	errs = append(errs, c.PeerFlags.validate(c.Out))
	return errors.Join(errs...)
}

// Run measures this host, and the links to others.
func (c *ProbeCmd) Run(e *env) error {
	program, err := c.program()
	if err != nil {
		return err
	}
	transport, err := c.transport()
	if err != nil {
		return err
	}
	cfg := probe.Config{Program: program, Devices: c.Device, Model: c.Model, Threads: c.Threads, Name: c.HostName,
		Address: c.HostAddress}
	if c.Listen != "" {
		return serveProbe(e, c.Listen, transport, cfg)
	}
	for _, address := range c.Peer {
		if err := probe.Reach(e.ctx, address, dialPeers(transport)); err != nil {
			return err
		}
	}
	rig, err := measure(e.ctx, e.err, cfg)
	if err != nil {
		return err
	}
	if err := addPeers(e, rig, c.Peer, transport); err != nil {
		return err
	}
	text, err := rig.JSON()
	if err != nil {
		return err
	}
	switch c.Out {
	case "-":
		_, err := e.out.Write(text)
		return err
	case "":
	default:
		if err := os.WriteFile(c.Out, text, 0o644); err != nil {
			return fmt.Errorf("--out: %w", err)
		}
	}
	return showRig(e.out, rig)
}

// measure makes a rig of this host.
func measure(ctx context.Context, progress io.Writer, cfg probe.Config) (*placement.Rig, error) {
	cfg.Report = func(text string) { fmt.Fprintln(progress, text) }
	h, err := probe.Host(ctx, cfg)
	if err != nil {
		return nil, err
	}
	rig := &placement.Rig{Hosts: []placement.Host{*h}}
	return rig, rig.Complete()
}

// showRig prints a rig for people.
func showRig(out io.Writer, rig *placement.Rig) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "HOST\tDEVICE\tCARD\tFREE\tREADS, GB/s\t32 ROWS, GMAC/s\t512 ROWS, GMAC/s\tSTEP, µs\tFIGURES")
	for _, h := range rig.Hosts {
		for _, d := range h.Devices {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.3g\t%.0f\t%.0f\t%.0f\t%s\n", h.Name, d.Name, d.Card, d.Free.Human(),
				d.Cost.ReadGBs, d.Cost.GMACs(32), d.Cost.GMACs(512), d.Cost.StepUS, d.Origin)
		}
	}
	for _, h := range rig.Hosts {
		fmt.Fprintf(w, "\n%s: rows from engine to engine %.0f µs and %.3g GB/s (%s)\n", h.Name, h.Border.RoundTripUS,
			h.Border.GBs, h.Border.Origin)
	}
	for _, l := range rig.Links {
		fmt.Fprintf(w, "%s to %s: %.0f µs and %.3g GB/s (%s)\n", l.A, l.B, l.RoundTripUS, l.GBs, l.Origin)
	}
	return w.Flush()
}
