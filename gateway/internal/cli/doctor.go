package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/tandem-inference/tandem/gateway/internal/app"
	"github.com/tandem-inference/tandem/gateway/internal/doctor"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/device"
	"github.com/tandem-inference/tandem/services/gguf"
)

// DoctorCmd is tandem doctor: what tandem serve needs, looked at before it starts.
type DoctorCmd struct {
	ServeCmd
	JSON bool `name:"json" env:"-" help:"Print the results as JSON."`
}

// BeforeApply leaves the checks of tandem serve to Run, which reports them as results.
func (c *DoctorCmd) BeforeApply() error {
	c.examined = true
	return nil
}

// Verify hides that of tandem serve, for the same reason.
func (c *DoctorCmd) Verify() error { return nil }

// errUnwell is the error of an examination in which something failed.
var errUnwell = errors.New("something is wrong, see above")

// Run examines the machine.
func (c *DoctorCmd) Run(e *env) error {
	results := c.settings()
	plan, models := c.plan()
	results = append(append(results, models...), doctor.Examine(doctor.Here(), plan)...)
	failed := false
	for _, r := range results {
		failed = failed || r.Status == doctor.Fail
	}
	if c.JSON {
		out := json.NewEncoder(e.out)
		out.SetIndent("", "  ")
		out.SetEscapeHTML(false)
		if err := out.Encode(results); err != nil {
			return err
		}
	} else {
		colour := map[doctor.Status]string{doctor.OK: "\x1b[32m", doctor.Warn: "\x1b[33m", doctor.Fail: "\x1b[31m"}
		for _, r := range results {
			status := fmt.Sprintf("%-4s", r.Status)
			if styled(e.out) {
				status = colour[r.Status] + status + "\x1b[0m"
			}
			fmt.Fprintf(e.out, "%s  %-22s %s\n", status, r.Check, r.Text)
			if r.Mend != "" {
				fmt.Fprintf(e.out, "      %-22s → %s\n", "", r.Mend)
			}
		}
	}
	if failed {
		return errUnwell
	}
	return nil
}

// settings checks the values of flags, variables and file.
func (c *DoctorCmd) settings() []doctor.Result {
	var results []doctor.Result
	err := errors.Join(c.WorkerFlags.validate(), c.Config.Validate(),
		c.StoreFlags.resolveAll(&c.Target, &c.Draft, &c.Model, &c.PrefillDrafter))
	if err != nil {
		results = append(results, doctor.Result{Check: "settings", Status: doctor.Fail, Text: err.Error(),
			Mend: "tandem serve --help"})
	}
	for _, w := range c.Check() {
		results = append(results, doctor.Result{Check: "settings", Status: doctor.Warn, Text: w.String(),
			Mend: "--" + w.Flag})
	}
	if len(results) == 0 {
		results = append(results, doctor.Result{Check: "settings", Status: doctor.OK, Text: "valid"})
	}
	return results
}

// plan is what tandem serve would start, and results about its models. Without a model the machine alone is looked at.
func (c *DoctorCmd) plan() (doctor.Plan, []doctor.Result) {
	p := doctor.Plan{Version: config.Version(), Engine: c.Engine, Threads: c.Threads}
	var results []doctor.Result
	programs, err := c.programs()
	if err != nil {
		results = append(results, doctor.Result{Check: "programs", Status: doctor.Fail, Text: err.Error(),
			Mend: "--programs"})
	}
	p.Programs = programs
	if p.Engine == "" {
		p.Engine = filepath.Join(programs, "tandem-engine")
	}
	models, err := c.models()
	switch {
	case models.target == "" && err != nil && !c.Demo:
		models = trio{}
		results = append(results, doctor.Result{Check: "models", Status: doctor.OK,
			Text: "none given: tandem doctor MODEL.gguf looks at it, too"})
	case err != nil:
		results = append(results, doctor.Result{Check: "models", Status: doctor.Fail, Text: err.Error(),
			Mend: "tandem inspect FILE, tandem pull OWNER/NAME:FILE"})
	default:
		results = append(results, doctor.Result{Check: "models", Status: doctor.OK, Text: "complete, and belong together"})
	}
	for _, m := range []struct{ program, flag, path string }{{workerTarget, "target", models.target},
		{workerDraft, "--draft", models.draft}, {workerPrefill, "--prefill-drafter", models.prefill}} {
		if m.path == "" && m.program != workerTarget {
			continue
		}
		devices := c.devices(m.program)
		p.Workers = append(p.Workers, doctor.Worker{Program: m.program, Devices: devices})
		if m.path == "" {
			continue
		}
		onCPU := false
		for _, name := range devices {
			d, err := device.Parse(name)
			onCPU = onCPU || err == nil && d.Backend == "cpu"
		}
		p.Models = append(p.Models, doctor.Model{Flag: m.flag, Path: m.path, Bytes: modelBytes(m.path), OnCPU: onCPU})
	}
	p.Ports = append(p.Ports, doctor.Port{Flag: "--port", Address: net.JoinHostPort(c.Host, strconv.Itoa(c.Port))})
	if c.GRPCPort >= 0 {
		p.Ports = append(p.Ports, doctor.Port{Flag: "--grpc-port", Address: net.JoinHostPort(c.Host,
			strconv.Itoa(c.GRPCPort))})
	}
	if c.RegistryListen != app.Defaults().RegistryListen {
		p.Ports = append(p.Ports, doctor.Port{Flag: "--registry-listen", Address: c.RegistryListen})
	}
	p.Folders = append(p.Folders, doctor.Folder{Flag: "TMPDIR", Path: os.TempDir()})
	for _, f := range []doctor.Folder{{Flag: "--kv-cache-dir", Path: c.KVCacheDir, Need: int64(c.KVCacheBudget) << 20},
		{Flag: "--cache-dir", Path: c.CacheDir}} {
		if f.Path != "" {
			p.Folders = append(p.Folders, f)
		}
	}
	for _, s := range []doctor.Secret{{Flag: "--api-key-file", Path: c.APIKeyFile}, {Flag: "--tls-key", Path: c.TLSKey},
		{Flag: "--seal-key-file", Path: c.SealKeyFile}} {
		// A sealing key that is not there is made.
		if _, err := os.Stat(s.Path); s.Path != "" && (err == nil || s.Flag != "--seal-key-file") {
			p.Secrets = append(p.Secrets, s)
		}
	}
	return p, results
}

// modelBytes is the size of a model's tensors, 0 when it cannot be read: that is reported elsewhere.
func modelBytes(path string) int64 {
	file, err := gguf.Open(path)
	if err != nil {
		return 0
	}
	defer file.Close()
	model, err := file.Model()
	if err != nil {
		return 0
	}
	return model.TensorBytes
}
