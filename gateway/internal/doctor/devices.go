package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/device"
)

// devices checks each device once: its library, its driver, the card, and the right to use it.
func (x *examination) devices() {
	seen := map[string]bool{}
	for _, w := range x.plan.Workers {
		for _, name := range w.Devices {
			if seen[name] {
				continue
			}
			seen[name] = true
			d, err := device.Parse(name)
			if err != nil {
				x.fail("device "+name, "cpu, cuda:N or hip:N", "%v", err)
				continue
			}
			if _, err := device.FindLibrary(filepath.Dir(x.plan.Engine), d); err != nil && !seen[d.Backend+" library"] {
				seen[d.Backend+" library"] = true
				x.fail("library "+d.Backend, "make build"+map[string]string{"cuda": "-cuda", "hip": "-hip"}[d.Backend], "%v",
					err)
			}
			switch d.Backend {
			case "cuda":
				x.cuda(d)
			case "hip":
				x.hip(d)
			default:
				x.ok("device "+name, "%s", name)
			}
		}
	}
}

var nvidiaVersion = regexp.MustCompile(`Module\s+([0-9]+)\.([0-9.]+)`)

// oldestNVIDIA is the driver that CUDA 12.8 needs; 13 needs 580.
const oldestNVIDIA = 570

func (x *examination) cuda(d device.Name) {
	check := "device " + d.String()
	expose := func(outside, inside string) string {
		if x.container() {
			return inside
		}
		return outside
	}
	found := nvidiaVersion.FindStringSubmatch(x.read("proc/driver/nvidia/version"))
	if found == nil {
		x.fail(check, expose("install NVIDIA's driver and load it (modprobe nvidia; dmesg | grep -i nvidia)",
			"--gpus all, or a device reservation in compose.yaml; the host needs nvidia-container-toolkit"),
			"NVIDIA's driver is not loaded")
		return
	}
	if major, _ := strconv.Atoi(found[1]); major < oldestNVIDIA {
		x.fail(check, fmt.Sprintf("install driver %d or newer (580 for CUDA 13)", oldestNVIDIA),
			"NVIDIA's driver is %s.%s, too old",
			found[1], found[2])
		return
	}
	cards, _ := Cards(x.Files)
	if d.Index >= cards {
		x.fail(check, "nvidia-smi -L lists them", "the driver shows %d cards, the first is cuda:0", cards)
		return
	}
	nodes := []string{"dev/nvidiactl", "dev/nvidia-uvm"}
	// Which card is which number is the driver's matter (CUDA_VISIBLE_DEVICES); with one there is no doubt.
	if cards == 1 {
		nodes = append(nodes, "dev/nvidia0")
	}
	for _, node := range nodes {
		if !x.usable(check, node, expose("nvidia-modprobe -u -c=0", "--gpus all, or a device reservation in compose.yaml"),
			"chmod 666 /"+node+", as NVIDIA's driver has it by default") {
			return
		}
	}
	x.ok(check, "driver %s.%s, %d card(s)", found[1], found[2], cards)
}

// usable checks that a device's node is there and may be opened.
func (x *examination) usable(check, node, missing, denied string) bool {
	err := x.Open("/" + node)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		x.fail(check, missing, "there is no /%s", node)
	case errors.Is(err, fs.ErrPermission):
		x.fail(check, denied, "this user may not open /%s", node)
	case err != nil:
		x.fail(check, "dmesg shows what the driver says", "/%s: %v", node, err)
	}
	return err == nil
}

// Cards counts the cards that the drivers of a machine with such files show.
func Cards(files fs.FS) (cuda, hip int) {
	x := examination{System: System{Files: files}}
	for _, node := range x.glob("sys/class/kfd/kfd/topology/nodes/*/properties") {
		if simdCount.MatchString(x.read(node)) {
			hip++
		}
	}
	return len(x.glob("proc/driver/nvidia/gpus/*")), hip
}

var simdCount = regexp.MustCompile(`(?m)^simd_count ([1-9][0-9]*)$`)

func (x *examination) hip(d device.Name) {
	check := "device " + d.String()
	missing := "load amdgpu (modprobe amdgpu; dmesg | grep -i amdgpu)"
	denied := "usermod -aG video,render $USER, then log in again"
	if x.container() {
		missing = "devices: [/dev/kfd, /dev/dri] in compose.yaml, or --device=/dev/kfd --device=/dev/dri"
		denied = "set TANDEM_VIDEO_GID and TANDEM_RENDER_GID (getent group video render on the host)"
	}
	if !x.usable(check, "dev/kfd", missing, denied) {
		return
	}
	_, cards := Cards(x.Files)
	if d.Index >= cards {
		x.fail(check, "rocminfo lists them; integrated graphics count", "the driver shows %d cards, the first is hip:0",
			cards)
		return
	}
	renders := x.glob("dev/dri/renderD*")
	if len(renders) == 0 {
		x.fail(check, missing, "there is no /dev/dri/renderD…")
		return
	}
	for _, render := range renders {
		if !x.usable(check, render, missing, denied) {
			return
		}
	}
	x.ok(check, "%d card(s)", cards)
}

// ports checks that nobody else has them. A gateway that runs already is no fault of the machine.
func (x *examination) ports() {
	running := ""
	for _, p := range x.plan.Ports {
		network, address := "tcp", p.Address
		if path, unix := strings.CutPrefix(address, "unix://"); unix {
			network, address = "unix", path
		}
		if err := x.Listen(network, address); err != nil {
			mend := p.Flag + " with another value"
			if _, port, found := strings.Cut(address, ":"); found && network == "tcp" {
				mend = fmt.Sprintf("ss -ltnp 'sport = :%s' shows who has it; or %s", port[strings.LastIndex(port, ":")+1:],
					mend)
			}
			if p.Flag == "--port" {
				running = x.Gateway(address)
			}
			if running != "" {
				x.warn("port "+p.Flag, "tandem run asks the one that runs; a second one needs "+p.Flag+" with another value",
					"%s is taken, and Tandem %s runs here already", p.Address, running)
				continue
			}
			x.fail("port "+p.Flag, mend, "%s cannot be opened: %v", p.Address, err)
			continue
		}
		x.ok("port "+p.Flag, "%s is free", p.Address)
	}
}

// folders checks that they can be written to, and have room.
func (x *examination) folders() {
	for _, f := range x.plan.Folders {
		check := "folder " + f.Flag
		// What is not there yet is made in the first folder above that is.
		dir := f.Path
		for {
			if info, err := os.Stat(dir); err == nil {
				if !info.IsDir() {
					x.fail(check, "name a folder", "%s is a file", dir)
					dir = ""
				}
				break
			}
			dir = filepath.Dir(dir)
		}
		if dir == "" {
			continue
		}
		file, err := os.CreateTemp(dir, ".tandem-doctor-*")
		if err != nil {
			x.fail(check, fmt.Sprintf("chown $(id -u) %s, or another folder", dir), "%s cannot be written to: %v", f.Path,
				err)
			continue
		}
		file.Close()
		os.Remove(file.Name())
		switch free, err := x.Free(dir); {
		case err != nil:
			x.fail(check, "another folder", "%v", err)
		case free < f.Need:
			x.fail(check, "a smaller budget, or another disk", "%s has %s left, its files may take %s", f.Path,
				config.Size(free).Human(),
				config.Size(f.Need).Human())
		case free < 64<<20:
			x.fail(check, "df -h "+dir, "the disk of %s is full", f.Path)
		default:
			x.ok(check, "%s, %s left", f.Path, config.Size(free).Human())
		}
	}
}

// secrets checks that nobody else reads them.
func (x *examination) secrets() {
	for _, s := range x.plan.Secrets {
		info, err := os.Stat(s.Path)
		switch {
		case err != nil:
			x.fail("file "+s.Flag, "another path", "%v", err)
		case info.Mode().Perm()&0o007 != 0:
			x.warn("file "+s.Flag, "chmod o-rwx "+s.Path, "%s can be read by every user of the machine", s.Path)
		default:
			x.ok("file "+s.Flag, "%s", s.Path)
		}
	}
}
