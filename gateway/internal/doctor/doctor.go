// Package doctor looks at what a cluster on this machine needs, before it is started, and says what is wrong and what
// mends it. It only reads, and opens ports for a moment.
package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/services/transfer"
)

// Status of a check.
type Status string

// OK is as it should be, Warn works worse than it could, Fail does not work.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Result of one check.
type Result struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Text   string `json:"text"`
	// Mend is a command or setting that helps; empty when nothing is wrong.
	Mend string `json:"mend,omitempty"`
}

// System is the machine that is looked at.
type System struct {
	// Files has /proc, /sys and /dev.
	Files fs.FS
	// Open opens a device of /dev and closes it again.
	Open func(path string) error
	// Listen opens a port and closes it again.
	Listen func(network, address string) error
	// Gateway returns the version of the Tandem gateway that serves HTTP at an address, empty when there is none.
	Gateway func(address string) string
	// Free is the room on the disk of a folder.
	Free func(dir string) (int64, error)
	// Version asks a program for its version.
	Version func(program string) (string, error)
	Now     func() time.Time
}

// Here is the machine that this process runs on.
func Here() System {
	return System{
		Files: os.DirFS("/"),
		Open: func(path string) error {
			file, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			return file.Close()
		},
		Listen: func(network, address string) error {
			l, err := net.Listen(network, address)
			if err != nil {
				return err
			}
			return l.Close()
		},
		Gateway: gatewayAt,
		Free:    transfer.FreeBytes,
		Version: func(program string) (string, error) {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			out, err := exec.CommandContext(ctx, program, "--version").Output()
			return strings.TrimSpace(string(out)), err
		},
		Now: time.Now,
	}
}

// gatewayAt asks for /props.
func gatewayAt(address string) string {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}
	response, err := client.Get("http://" + address + "/props")
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var props struct {
		Server struct{ Name, Version string }
	}
	if json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&props) != nil || props.Server.Name != "tandem" {
		return ""
	}
	return props.Server.Version
}

// Plan is what would be started.
type Plan struct {
	Version  string // that all programs should have
	Programs string // their folder
	Workers  []Worker
	// Engine is the program of all engines, its libraries beside it.
	Engine  string
	Models  []Model
	Ports   []Port
	Folders []Folder
	Secrets []Secret
	Threads int // of the CPU's engine, 0 = one per core
}

// Worker is a process with its devices.
type Worker struct {
	Program string
	Devices []string
}

// Model is a file that an engine loads.
type Model struct {
	Flag, Path string
	Bytes      int64
	OnCPU      bool
}

// Port is one that is opened.
type Port struct{ Flag, Address string }

// Folder is one that is written to; Need is the room that its files take at most.
type Folder struct {
	Flag, Path string
	Need       int64
}

// Secret is a file that only its owner should read.
type Secret struct{ Flag, Path string }

// examination collects results.
type examination struct {
	System
	plan    Plan
	results []Result
}

// Examine runs all checks.
func Examine(s System, p Plan) []Result {
	x := &examination{System: s, plan: p}
	x.cpu()
	x.memory()
	x.clock()
	x.limits()
	x.programs()
	x.devices()
	x.ports()
	x.folders()
	x.secrets()
	return x.results
}

func (x *examination) ok(check, format string, args ...any) {
	x.results = append(x.results, Result{check, OK, fmt.Sprintf(format, args...), ""})
}

func (x *examination) warn(check, mend, format string, args ...any) {
	x.results = append(x.results, Result{check, Warn, fmt.Sprintf(format, args...), mend})
}

func (x *examination) fail(check, mend, format string, args ...any) {
	x.results = append(x.results, Result{check, Fail, fmt.Sprintf(format, args...), mend})
}

// read returns a small file of the machine without the white space around, empty when it is not there.
func (x *examination) read(name string) string {
	data, err := fs.ReadFile(x.Files, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func (x *examination) exists(name string) bool {
	_, err := fs.Stat(x.Files, name)
	return err == nil
}

// glob lists files of the machine.
func (x *examination) glob(pattern string) []string {
	names, err := fs.Glob(x.Files, pattern)
	if err != nil {
		panic("doctor: " + pattern + ": " + err.Error()) // the pattern is ours
	}
	return names
}

// container says whether we run in one: then devices and limits come from its settings.
func (x *examination) container() bool {
	return x.exists(".dockerenv") || x.exists("run/.containerenv")
}
