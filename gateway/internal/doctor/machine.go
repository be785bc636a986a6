package doctor

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/services/config"
)

var cpuFlags = regexp.MustCompile(`(?m)^flags\s*:(.*)$`)

// cores counts the processors.
func (x *examination) cores() int {
	return strings.Count("\n"+x.read("proc/cpuinfo"), "\nprocessor")
}

// cpu checks instruction sets and how much of the cores a container may use.
func (x *examination) cpu() {
	flags := ""
	if found := cpuFlags.FindStringSubmatch(x.read("proc/cpuinfo")); found != nil {
		flags = found[1] + " "
	}
	switch {
	case strings.Contains(flags, " avx512_vnni "):
		x.ok("cpu", "%d cores with AVX-512 VNNI", x.cores())
	case strings.Contains(flags, " avx2 "):
		x.ok("cpu", "%d cores with AVX2", x.cores())
	default:
		x.warn("cpu", "use a processor with AVX2, or a card by --device",
			"no AVX2: the CPU's engine runs plain code, which is slow")
	}
	quota, period, _ := strings.Cut(x.read("sys/fs/cgroup/cpu.max"), " ")
	allowed, err1 := strconv.ParseFloat(quota, 64)
	per, err2 := strconv.ParseFloat(period, 64)
	threads := x.plan.Threads
	if threads == 0 {
		threads = x.cores()
	}
	if err1 == nil && err2 == nil && per > 0 && float64(threads) > allowed/per+0.5 {
		n := max(1, int(allowed/per))
		x.warn("cpu limit", fmt.Sprintf("--threads %d", n),
			"%d threads share %.1f cores, which the control group allows: they "+
				"wait for each other", threads, allowed/per)
	}
	governor, driver := "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"
	// intel_pstate and amd_pstate raise the clock in their powersave, too.
	if x.read(governor) == "powersave" && !strings.Contains(x.read(driver), "pstate") {
		x.warn("cpu clock", "cpupower frequency-set -g performance",
			"the governor powersave keeps the cores at their lowest clock")
	}
}

// meminfo returns a value of /proc/meminfo in bytes, -1 when it is not there.
func (x *examination) meminfo(key string) int64 {
	for line := range strings.Lines(x.read("proc/meminfo")) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == key+":" {
			if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				return n << 10
			}
		}
	}
	return -1
}

// memory checks that the models of the CPU fit.
func (x *examination) memory() {
	var need int64
	for _, m := range x.plan.Models {
		if m.OnCPU {
			need += m.Bytes
		}
	}
	left, where := x.meminfo("MemAvailable"), "the machine"
	if limit, err := strconv.ParseInt(x.read("sys/fs/cgroup/memory.max"), 10, 64); err == nil {
		used, _ := strconv.ParseInt(x.read("sys/fs/cgroup/memory.current"), 10, 64)
		if room := limit - used; left < 0 || room < left {
			left, where = room, "the control group"
		}
	}
	size := func(n int64) string { return config.Size(max(n, 0)).Human() }
	switch {
	case left < 0:
		x.warn("memory", "mount /proc", "unknown: /proc/meminfo cannot be read")
	case need > left:
		x.fail("memory", "smaller models, a card by --device, or end what holds memory (ps aux --sort=-rss)",
			"models for the CPU have %s, %s has %s left", size(need), where, size(left))
	case need+need/8 > left:
		x.warn("memory", "a smaller --max-ctx, --cache-type-k q8_0",
			"models for the CPU have %s of %s that %s has left: little "+
				"remains for contexts", size(need), size(left), where)
	default:
		x.ok("memory", "%s left, models for the CPU have %s", size(left), size(need))
	}
}

// clock checks what time it is, and how fast one can ask.
func (x *examination) clock() {
	const built = 2026 // the year of this text
	now := x.Now()
	if now.Year() < built {
		x.fail("clock", "timedatectl set-ntp true", "it says %s: certificates will not be valid", now.Format(time.DateOnly))
		return
	}
	switch source := x.read("sys/devices/system/clocksource/clocksource0/current_clocksource"); source {
	case "hpet", "acpi_pm", "jiffies":
		x.warn("clock", "dmesg | grep -i clocksource", "the clock source %s takes microseconds to read, tsc nanoseconds",
			source)
	default:
		x.ok("clock", "%s", now.Format(time.DateTime))
	}
}

var openFiles = regexp.MustCompile(`(?m)^Max open files\s+(\S+)`)

// limits checks those of the process and of its container.
func (x *examination) limits() {
	if found := openFiles.FindStringSubmatch(x.read("proc/self/limits")); found != nil {
		if n, err := strconv.Atoi(found[1]); err == nil && n < 1024 {
			x.warn("open files", "ulimit -n 65536", "at most %d open files: about %d clients at a time", n, n/2)
		}
	}
	if n, err := strconv.Atoi(x.read("sys/fs/cgroup/pids.max")); err == nil && n < 256 {
		x.warn("processes", "a larger pids_limit (or TasksMax=)", "the control group allows %d processes and threads", n)
	}
}

// programs checks that the programs are there, may run, and are of one version.
func (x *examination) programs() {
	programs := []string{x.plan.Engine}
	for _, w := range x.plan.Workers {
		programs = append(programs, filepath.Join(x.plan.Programs, w.Program))
	}
	good := true
	for _, program := range programs {
		version, err := x.Version(program)
		name := filepath.Base(program)
		switch {
		case err != nil:
			good = false
			x.fail("programs", "make build, or name their folder by --programs", "%s does not run: %v", program, err)
		case !strings.Contains(version+" ", " "+x.plan.Version+" "):
			good = false
			x.fail("programs", "make build, or install all programs of one release", "%s is of another version: %q, not %s",
				name,
				version, x.plan.Version)
		}
	}
	if good {
		x.ok("programs", "%d in %s, version %s", len(programs), x.plan.Programs, x.plan.Version)
	}
}
