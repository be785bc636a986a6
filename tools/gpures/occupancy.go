package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// A Launch is a launch of a step of the 27B, as a program of native/bench/gpu_launches.cpp prints it.
type Launch struct {
	Arch      string
	Operation string
	Rows      int
	Kernel    string // as Kernel.Name
	Threads   int    // of a block
	Dynamic   int    // bytes of shared memory a block that the host sets
}

// A Processor is what blocks share: an SM, or a WGP with four SIMDs.
type Processor struct {
	Shared    int // bytes
	Granule   int // of shared memory, bytes
	Reserved  int // shared memory that the system takes a block
	Registers int // a lane, in each of its parts
	Step      int // registers of a lane come in multiples
	Parts     int // schedulers, SIMDs: a warp lives in one
	Warps     int // of a part, at most
	Blocks    int // at most
}

// processors by architecture. sm_86: CUDA's table of compute capabilities; a warp's registers come in units of 256, 8 a
// lane, from the 16,384 of a part. gfx1100: RDNA3, wave32, WGP mode: 1536 registers a lane and SIMD in steps of 24.
var processors = map[string]Processor{
	"sm_86":   {Shared: 100 << 10, Granule: 128, Reserved: 1024, Registers: 512, Step: 8, Parts: 4, Warps: 12, Blocks: 16},
	"gfx1100": {Shared: 128 << 10, Granule: 512, Registers: 1536, Step: 24, Parts: 4, Warps: 16, Blocks: 32},
}

const lanes = 32 // of a warp

// fits returns how many blocks of a kernel a processor holds, and what allows no more.
func (p Processor) fits(k Kernel, l Launch) (blocks int, limit string) {
	up := func(n, step int) int { return (n + step - 1) / step * step }
	warps := up(l.Threads, lanes) / lanes
	byRegisters := p.Registers / max(up(k.Registers, p.Step), p.Step) * p.Parts / warps
	byShared := p.Blocks
	if shared := up(k.Shared+l.Dynamic, p.Granule) + p.Reserved; shared > 0 {
		byShared = p.Shared / shared
	}
	blocks, limit = p.Blocks, "blocks"
	for _, b := range []struct {
		fit  int
		name string
	}{{p.Warps * p.Parts / warps, "warps"}, {byRegisters, "registers"}, {byShared, "shared"}} {
		if b.fit < blocks {
			blocks, limit = b.fit, b.name
		}
	}
	return blocks, limit
}

const occupancyHead = `# What a processor holds of the kernels of a step of the 27B, by the launches of that step (native/bench/gpu_launches.cpp)
# and the registers of GPU_RESOURCES.tsv. make gpu-resources rewrites it. threads: of a block. dynamic: bytes of shared
# memory a block that the host sets; registers, static: of GPU_RESOURCES.tsv. blocks, warps: that an SM of sm_86 (of 16
# and 48), or a WGP of gfx1100 (of 32 and 64 waves), holds at a time. limit: what allows no more. Rows are those of the
# step; 512 is a prompt's.
arch	operation	rows	kernel	threads	dynamic	registers	static	blocks	warps	limit
`

// occupancy writes the page of the launches: their kernels are looked for among those of the table.
func (t *Table) occupancy(launches []Launch) (string, error) {
	var b strings.Builder
	b.WriteString(occupancyHead)
	for _, l := range launches {
		p, ok := processors[l.Arch]
		if !ok {
			return "", fmt.Errorf("%s: nothing is known about its processors", l.Arch)
		}
		k, err := t.kernel(l.Arch, l.Kernel)
		if err != nil {
			return "", err
		}
		blocks, limit := p.fits(k, l)
		fmt.Fprintf(&b, "%s\t%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", l.Arch, l.Operation, l.Rows, l.Kernel, l.Threads,
			l.Dynamic, k.Registers, k.Shared, blocks, blocks*((l.Threads+lanes-1)/lanes), limit)
	}
	return b.String(), nil
}

// kernel finds a kernel by its name, in whichever file.
func (t *Table) kernel(arch, name string) (Kernel, error) {
	var found []Kernel
	for key, k := range t.Rows {
		if key[0] == arch && key[2] == name {
			found = append(found, k)
		}
	}
	if len(found) != 1 {
		return Kernel{}, fmt.Errorf("%s: the table has %d kernels %s, want one", arch, len(found), name)
	}
	return found[0], nil
}

// readLaunches reads the launches of a page that occupancy wrote.
func readLaunches(text string) ([]Launch, error) {
	var launches []Launch
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		f := strings.Split(line, "\t")
		if line == "" || line[0] == '#' || f[0] == "arch" {
			continue
		}
		if len(f) != 11 {
			return nil, fmt.Errorf("line %d: %d columns, want 11", i+1, len(f))
		}
		launches = append(launches, Launch{f[0], f[1], number(f[2]), f[3], number(f[4]), number(f[5])})
	}
	return launches, nil
}

// printed runs a program of gpu_launches.cpp and returns its launches, each once.
func printed(arch, program string) ([]Launch, error) {
	out, err := exec.Command(program).Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	names, anchor, err := kernelsOf(program)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	var launches []Launch
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 5 {
			return nil, fmt.Errorf("%s: %d columns, want 5: %q", program, len(f), line)
		}
		offset, err := strconv.ParseInt(f[2], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", program, err)
		}
		name, ok := names[anchor+uint64(offset)]
		if !ok {
			return nil, fmt.Errorf("%s: %s of %s rows launches what is no kernel", program, f[0], f[1])
		}
		l := Launch{arch, f[0], number(f[1]), name, number(f[3]), number(f[4])}
		if !slices.Contains(launches, l) {
			launches = append(launches, l)
		}
	}
	return launches, nil
}

// kernelsOf returns the kernels of a program by address, and the address that it counts from. Kernels are told by their
// names, which end in _kernel; for HIP the symbol is the handle of a kernel, of the kernel's name.
func kernelsOf(program string) (names map[uint64]string, anchor uint64, err error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		return nil, 0, err
	}
	mangled := map[uint64]string{}
	for _, s := range symbols {
		if s.Name == "tandem_launches_anchor" {
			anchor = s.Value
		}
		if strings.HasPrefix(s.Name, "_Z") && strings.Contains(s.Name, "_kernel") &&
			!strings.Contains(s.Name, "device_stub") {
			mangled[s.Value] = s.Name
		}
	}
	if anchor == 0 {
		return nil, 0, fmt.Errorf("it has no tandem_launches_anchor")
	}
	addresses := slices.Sorted(maps.Keys(mangled))
	all := make([]string, len(addresses))
	for i, a := range addresses {
		all[i] = mangled[a]
	}
	if all, err = readable(all); err != nil {
		return nil, 0, err
	}
	names = map[uint64]string{}
	for i, a := range addresses {
		names[a] = short(all[i])
	}
	return names, anchor, nil
}

// checkOccupancy compares the page at path with what follows from the table and from the programs that print launches,
// "sm_86=native/build/gpu_launches_emu"; launches of other processors are the page's own. With update it writes it.
func (t *Table) checkOccupancy(path string, programs []string, update bool) error {
	text, err := os.ReadFile(path)
	if err != nil && !(update && os.IsNotExist(err)) {
		return err
	}
	launches, err := readLaunches(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, of := range programs {
		arch, program, ok := strings.Cut(of, "=")
		if !ok {
			return fmt.Errorf("%q, want ARCH=PROGRAM", of)
		}
		own, err := printed(arch, program)
		if err != nil {
			return err
		}
		launches = slices.DeleteFunc(launches, func(l Launch) bool { return l.Arch == arch })
		launches = append(launches, own...)
	}
	slices.SortStableFunc(launches, func(a, b Launch) int { return strings.Compare(a.Arch, b.Arch) })
	want, err := t.occupancy(launches)
	if err != nil {
		return err
	}
	if update {
		return os.WriteFile(path, []byte(want), 0o644)
	}
	if !bytes.Equal(text, []byte(want)) {
		return fmt.Errorf("%s is not what follows from launches and registers: make gpu-resources", path)
	}
	return nil
}
