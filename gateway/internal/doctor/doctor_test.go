package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
)

// machine is one that lacks nothing: two NVIDIA cards, one AMD card, room for everything.
type machine struct {
	t        *testing.T
	system   System
	plan     Plan
	files    fstest.MapFS
	versions map[string]string // by name of the program
	denied   map[string]error  // by path
	taken    map[string]bool
	gateways map[string]string
	now      time.Time
	free     int64
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	data := t.TempDir()
	m := &machine{t: t, files: fstest.MapFS{}, versions: map[string]string{}, denied: map[string]error{},
		taken: map[string]bool{}, free: 1 << 40,
		now: time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)}
	m.system = System{
		Files: m.files,
		Open: func(path string) error {
			if err := m.denied[path]; err != nil {
				return err
			}
			_, err := m.files.Open(path[1:])
			return err
		},
		Listen: func(_, address string) error {
			if m.taken[address] {
				return syscall.EADDRINUSE
			}
			return nil
		},
		Gateway: func(address string) string { return m.gateways[address] },
		Free:    func(string) (int64, error) { return m.free, nil },
		Version: func(program string) (string, error) {
			version, ok := m.versions[filepath.Base(program)]
			if !ok {
				return "", fs.ErrNotExist
			}
			return version, nil
		},
		Now: func() time.Time { return m.now },
	}
	for path, text := range map[string]string{
		"proc/cpuinfo":               "processor\t: 0\nflags\t\t: sse avx2 fma\n\nprocessor\t: 1\nflags\t\t: sse avx2 fma\n",
		"proc/meminfo":               "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n",
		"proc/self/limits":           "Limit Soft Limit Hard Limit Units\nMax open files            1048576              1048576              files\n",
		"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27\n",
		"proc/driver/nvidia/gpus/0000:01:00.0/information": "",
		"proc/driver/nvidia/gpus/0000:02:00.0/information": "",
		"dev/nvidiactl":      "",
		"dev/nvidia-uvm":     "",
		"dev/nvidia0":        "",
		"dev/kfd":            "",
		"dev/dri/renderD128": "",
		"sys/class/kfd/kfd/topology/nodes/0/properties":                   "cpu_cores_count 8\nsimd_count 0\n",
		"sys/class/kfd/kfd/topology/nodes/1/properties":                   "cpu_cores_count 0\nsimd_count 192\n",
		"sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor":            "powersave\n",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_driver":              "intel_pstate\n",
		"sys/fs/cgroup/cpu.max":                                           "max 100000\n",
		"sys/fs/cgroup/memory.max":                                        "max\n",
		"sys/fs/cgroup/pids.max":                                          "max\n",
	} {
		m.set(path, text)
	}
	programs := filepath.Join(data, "bin")
	for _, name := range []string{"worker-target", "worker-draft", "worker-prefill", "tandem-engine"} {
		m.versions[name] = name + " v1 go1.26 linux/amd64"
	}
	for _, name := range []string{"libtandem_cpu.so", "libtandem_cuda.so", "libtandem_hip.so"} {
		m.write(filepath.Join(programs, name), "")
	}
	key := filepath.Join(data, "keys")
	m.write(key, "k")
	m.plan = Plan{Version: "v1", Programs: programs, Engine: filepath.Join(programs, "tandem-engine"),
		Workers: []Worker{{"worker-target", []string{"cuda:0", "cuda:1"}}, {"worker-draft", []string{"hip:0"}},
			{"worker-prefill", []string{"cpu"}}},
		Models:  []Model{{"--draft", "d", 1 << 30, false}, {"--prefill-drafter", "p", 1 << 30, true}},
		Ports:   []Port{{"--port", "127.0.0.1:8000"}, {"--registry-listen", "unix:///run/x"}},
		Folders: []Folder{{"--kv-cache-dir", filepath.Join(data, "states"), 4 << 30}, {"TMPDIR", data, 0}},
		Secrets: []Secret{{"--api-key-file", key}}}
	return m
}

func (m *machine) write(path, text string) {
	m.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) set(path, text string) { m.files[path] = &fstest.MapFile{Data: []byte(text)} }

func (m *machine) remove(path string) {
	maps.DeleteFunc(m.files, func(name string, _ *fstest.MapFile) bool {
		return name == path || strings.HasPrefix(name, path+"/")
	})
}

// complaints are the results that are not ok.
func (m *machine) complaints() (out []Result) {
	for _, r := range Examine(m.system, m.plan) {
		if r.Status != OK {
			out = append(out, r)
		}
	}
	return out
}

func TestHealthyMachine(t *testing.T) {
	if found := newMachine(t).complaints(); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	// A container has other paths and limits, and still nothing wrong.
	m := newMachine(t)
	m.set(".dockerenv", "")
	m.set("sys/fs/cgroup/memory.max", "8589934592")
	m.set("sys/fs/cgroup/memory.current", "1000")
	m.set("sys/fs/cgroup/cpu.max", "200000 100000")
	if found := m.complaints(); len(found) > 0 {
		t.Errorf("in a container: %+v", found)
	}
}

// TestPlantedFaults: each fault is found, alone, with what mends it.
func TestPlantedFaults(t *testing.T) {
	denied := &fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}
	for name, c := range map[string]struct {
		plant      func(m *machine)
		status     Status
		check      string
		text, mend string
	}{
		"old processor": {func(m *machine) { m.set("proc/cpuinfo", "processor : 0\nflags : sse\n") }, Warn, "cpu",
			"no AVX2", "--device"},
		"limit of cores": {func(m *machine) { m.set("sys/fs/cgroup/cpu.max", "100000 100000") }, Warn, "cpu limit",
			"share 1.0 cores", "--threads 1"},
		"slow clock rate": {func(m *machine) {
			m.set("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver",
				"acpi-cpufreq")
		}, Warn, "cpu clock", "powersave", "performance"},
		"little memory": {func(m *machine) { m.set("proc/meminfo", "MemAvailable: 1000000 kB\n") }, Fail, "memory",
			"the machine has", "smaller models"},
		"limit of memory": {func(m *machine) { m.set("sys/fs/cgroup/memory.max", "900000000") }, Fail, "memory",
			"the control group has", "smaller models"},
		"no room for contexts": {func(m *machine) { m.set("proc/meminfo", "MemAvailable: 1100000 kB\n") }, Warn, "memory",
			"little remains",
			"--max-ctx"},
		"no /proc": {func(m *machine) { m.remove("proc/meminfo") }, Warn, "memory", "cannot be read", "/proc"},
		"wrong time": {func(m *machine) { m.now = time.Unix(0, 0).UTC() }, Fail, "clock", "1970-01-01",
			"timedatectl"},
		"slow clock": {func(m *machine) {
			m.set("sys/devices/system/clocksource/clocksource0/current_clocksource",
				"hpet")
		}, Warn, "clock", "hpet", "dmesg"},
		"few files": {func(m *machine) { m.set("proc/self/limits", "Max open files  256  4096  files\n") }, Warn,
			"open files", "256", "ulimit -n"},
		"few processes": {func(m *machine) { m.set("sys/fs/cgroup/pids.max", "64") }, Warn, "processes", "64",
			"pids_limit"},
		"no worker program": {func(m *machine) { delete(m.versions, "worker-draft") }, Fail, "programs",
			"worker-draft does not run", "make build"},
		"another version": {func(m *machine) { m.versions["tandem-engine"] = "tandem-engine v10 x" }, Fail, "programs",
			"another version", "one release"},
		"no library": {func(m *machine) { os.Remove(filepath.Join(m.plan.Programs, "libtandem_cuda.so")) }, Fail,
			"library cuda", "libtandem_cuda.so", "make build-cuda"},
		"no NVIDIA driver": {func(m *machine) {
			m.remove("proc/driver/nvidia")
			m.plan.Workers[0].Devices = []string{"cuda:0"}
		}, Fail, "device cuda:0", "not loaded", "modprobe nvidia"},
		"old NVIDIA driver": {func(m *machine) {
			m.set("proc/driver/nvidia/version", "Kernel Module  535.1")
			m.plan.Workers[0].Devices = []string{"cuda:0"}
		}, Fail, "device cuda:0", "535.1, too old", "570"},
		"no second card": {func(m *machine) { m.remove("proc/driver/nvidia/gpus/0000:02:00.0") }, Fail,
			"device cuda:1", "shows 1 cards", "nvidia-smi -L"},
		"no node of NVIDIA's": {func(m *machine) {
			m.remove("dev/nvidia-uvm")
			m.plan.Workers[0].Devices = []string{"cuda:0"}
		}, Fail, "device cuda:0", "no /dev/nvidia-uvm", "nvidia-modprobe"},
		"no cards in the container": {func(m *machine) {
			m.set(".dockerenv", "")
			m.remove("proc/driver/nvidia")
			m.plan.Workers[0].Devices = []string{"cuda:0"}
		}, Fail, "device cuda:0", "not loaded", "--gpus all"},
		"no amdgpu": {func(m *machine) { m.remove("dev/kfd") }, Fail, "device hip:0", "no /dev/kfd",
			"modprobe amdgpu"},
		"not in group render": {func(m *machine) { m.denied["/dev/kfd"] = denied }, Fail, "device hip:0",
			"may not open /dev/kfd", "usermod -aG video,render"},
		"no right to the card": {func(m *machine) { m.denied["/dev/dri/renderD128"] = denied }, Fail, "device hip:0",
			"may not open /dev/dri/renderD128", "usermod"},
		"groups of containers": {func(m *machine) { m.set("run/.containerenv", ""); m.denied["/dev/kfd"] = denied }, Fail,
			"device hip:0", "may not open", "TANDEM_RENDER_GID"},
		"no AMD card": {func(m *machine) { m.remove("sys/class/kfd/kfd/topology/nodes/1") }, Fail, "device hip:0",
			"shows 0 cards", "rocminfo"},
		"port taken": {func(m *machine) { m.taken["127.0.0.1:8000"] = true }, Fail, "port --port", "in use",
			"sport = :8000"},
		"served already": {func(m *machine) {
			m.taken["127.0.0.1:8000"], m.gateways = true, map[string]string{"127.0.0.1:8000": "v7"}
		}, Warn, "port --port", "Tandem v7 runs here already", "tandem run"},
		"socket taken": {func(m *machine) { m.taken["/run/x"] = true }, Fail, "port --registry-listen", "in use",
			"another value"},
		"a file for a folder": {func(m *machine) { m.plan.Folders[0].Path = m.plan.Secrets[0].Path }, Fail,
			"folder --kv-cache-dir", "is a file", "a folder"},
		"a folder of nobody": {func(m *machine) { m.plan.Folders[0].Path = "/proc/self/x" }, Fail,
			"folder --kv-cache-dir", "cannot be written", "chown"},
		"small disk": {func(m *machine) { m.free = 1 << 30 }, Fail, "folder --kv-cache-dir", "1.0 GiB left",
			"budget"},
		"full disk": {func(m *machine) { m.free = 1 << 20; m.plan.Folders = m.plan.Folders[1:] }, Fail,
			"folder TMPDIR", "is full", "df -h"},
		"keys for everybody": {func(m *machine) { _ = os.Chmod(m.plan.Secrets[0].Path, 0o644) }, Warn,
			"file --api-key-file", "every user", "chmod o-rwx"},
		"no keys": {func(m *machine) { os.Remove(m.plan.Secrets[0].Path) }, Fail, "file --api-key-file",
			"no such file", "another path"},
		"no such device": {func(m *machine) { m.plan.Workers[2].Devices = []string{"npu:0:1"} }, Fail,
			"device npu:0:1", "is no device", "cuda:N"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			c.plant(m)
			found := m.complaints()
			if len(found) != 1 {
				t.Fatalf("%d complaints: %+v", len(found), found)
			}
			r := found[0]
			if r.Status != c.status || r.Check != c.check || !strings.Contains(r.Text, c.text) || !strings.Contains(r.Mend,
				c.mend) {
				t.Errorf("%+v\nwant %s of %s with %q, %q", r, c.status, c.check, c.text, c.mend)
			}
		})
	}
}

// TestHere: the real machine can be looked at.
func TestHere(t *testing.T) {
	m := newMachine(t)
	system := Here()
	system.Version = m.system.Version
	plan := m.plan
	plan.Workers, plan.Ports = nil, []Port{{"--port", "127.0.0.1:0"}}
	for _, r := range Examine(system, plan) {
		if r.Check == "" || r.Text == "" || (r.Status != OK) != (r.Mend != "") {
			t.Errorf("%+v", r)
		}
	}
}

// TestGatewayIsFound: what says that it is Tandem, and nothing else.
func TestGatewayIsFound(t *testing.T) {
	for body, want := range map[string]string{
		`{"server":{"name":"tandem","version":"v7"}}`: "v7", `{"server":{"name":"other","version":"1"}}`: "", "<html>": "",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, body) }))
		if have := Here().Gateway(s.Listener.Addr().String()); have != want {
			t.Errorf("%s: %q", body, have)
		}
		s.Close()
	}
	if have := Here().Gateway("127.0.0.1:1"); have != "" {
		t.Errorf("where nothing is: %q", have)
	}
}
