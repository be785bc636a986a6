package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Kernel is what one compiled kernel takes of its processor.
type Kernel struct {
	Arch      string // sm_86, gfx1100
	File      string // name of the .cu file without ending
	Name      string // readable, without namespaces and parameters
	Registers int    // vector registers a thread
	Spilled   int    // CUDA: bytes stored and loaded; HIP: vector and scalar registers
	Scratch   int    // bytes a thread: stack frame
	Shared    int    // bytes a block, without the part that is set at launch
}

func (k Kernel) key() [3]string { return [3]string{k.Arch, k.File, k.Name} }

// readCompiler reads compiler.txt of a build folder: the compiler's version, and on the second line the processors of a
// compiler that does not repeat them in its reports, which is clang for HIP.
func readCompiler(folder string) (compiler string, archs []string, err error) {
	text, err := os.ReadFile(filepath.Join(folder, "compiler.txt"))
	if err != nil {
		return "", nil, err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) > 1 {
		archs = strings.Fields(lines[1])
	}
	return lines[0], archs, nil
}

// readFolder reads the reports of a build folder, <object>.res of every source.
func readFolder(folder string) (compiler string, kernels []Kernel, err error) {
	compiler, archs, err := readCompiler(folder)
	if err != nil {
		return "", nil, err
	}
	paths, err := filepath.Glob(filepath.Join(folder, "*.o.res"))
	if err != nil {
		return "", nil, err
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return "", nil, err
		}
		found, err := parse(f, archs)
		_ = f.Close()
		if err != nil {
			return "", nil, fmt.Errorf("%s: %w", path, err)
		}
		file := strings.TrimSuffix(filepath.Base(path), ".o.res")
		for i := range found {
			found[i].File = file
		}
		kernels = append(kernels, found...)
	}
	if err := demangle(kernels); err != nil {
		return "", nil, err
	}
	slices.SortFunc(kernels, func(a, b Kernel) int {
		return slices.Compare(slices.Collect(values(a)), slices.Collect(values(b)))
	})
	return compiler, kernels, nil
}

func values(k Kernel) func(func(string) bool) {
	return slices.Values([]string{k.Arch, k.File, k.Name})
}

var (
	ptxasEntry  = regexp.MustCompile(`Compiling entry function '([^']+)' for '([^']+)'`)
	ptxasFrame  = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	ptxasUsed   = regexp.MustCompile(`Used (\d+) registers`)
	ptxasShared = regexp.MustCompile(`(\d+) bytes smem`)
	hipRemark   = regexp.MustCompile(`remark:\s+([^:]+): (\S+) \[-Rpass-analysis=kernel-resource-usage\]`)
)

// parse reads what ptxas -v or clang's kernel-resource-usage remarks say. Clang's remarks name no processor: archs
// tells which ones the source was compiled for, in the compiler's order.
func parse(r io.Reader, archs []string) ([]Kernel, error) {
	var kernels []Kernel
	seen := map[string]int{} // HIP: how often a kernel was reported
	var frameOfEntry bool
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		line := scanner.Text()
		if m := ptxasEntry.FindStringSubmatch(line); m != nil {
			kernels = append(kernels, Kernel{Name: m[1], Arch: strings.TrimSuffix(m[2], "a")})
			frameOfEntry = false
			continue
		}
		if m := hipRemark.FindStringSubmatch(line); m != nil {
			if err := hipLine(m[1], m[2], archs, seen, &kernels); err != nil {
				return nil, err
			}
			continue
		}
		if len(kernels) == 0 {
			continue
		}
		k := &kernels[len(kernels)-1]
		// "Function properties" of the entry come first; device functions that were not inlined follow.
		if m := ptxasFrame.FindStringSubmatch(line); m != nil && !frameOfEntry {
			frameOfEntry = true
			k.Scratch, k.Spilled = number(m[1]), number(m[2])+number(m[3])
		}
		if m := ptxasUsed.FindStringSubmatch(line); m != nil {
			k.Registers = number(m[1])
			if s := ptxasShared.FindStringSubmatch(line); s != nil {
				k.Shared = number(s[1])
			}
		}
	}
	return kernels, scanner.Err()
}

func hipLine(field, value string, archs []string, seen map[string]int, kernels *[]Kernel) error {
	if field == "Function Name" {
		n := seen[value]
		seen[value]++
		if n >= len(archs) {
			return fmt.Errorf("kernel %s is reported %d times, compiled for %d processors", value, n+1, len(archs))
		}
		*kernels = append(*kernels, Kernel{Name: value, Arch: archs[n]})
		return nil
	}
	if len(*kernels) == 0 {
		return fmt.Errorf("%q before any kernel", field)
	}
	k := &(*kernels)[len(*kernels)-1]
	switch field {
	case "VGPRs":
		k.Registers = number(value)
	case "ScratchSize [bytes/lane]":
		k.Scratch = number(value)
	case "SGPRs Spill", "VGPRs Spill":
		k.Spilled += number(value)
	case "LDS Size [bytes/block]":
		k.Shared = number(value)
	}
	return nil
}

// number reads digits that a pattern has matched or a compiler has printed; anything else counts as -1 and so differs
// from every table.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// demangle makes the names of kernels readable and short.
func demangle(kernels []Kernel) error {
	names := make([]string, len(kernels))
	for i, k := range kernels {
		names[i] = k.Name
	}
	names, err := readable(names)
	if err != nil {
		return err
	}
	for i := range kernels {
		kernels[i].Name = short(names[i])
	}
	return nil
}

// readable demangles names with c++filt, which is there wherever a C++ compiler is.
func readable(mangled []string) ([]string, error) {
	if len(mangled) == 0 {
		return nil, nil
	}
	cmd := exec.Command("c++filt")
	cmd.Stdin = strings.NewReader(strings.Join(mangled, "\n") + "\n")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("c++filt: %w", err)
	}
	names := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(names) != len(mangled) {
		return nil, fmt.Errorf("c++filt: %d names for %d kernels", len(names), len(mangled))
	}
	return names, nil
}

// short drops return type, namespaces and parameters: "void tnd::gpu::(anonymous namespace)::f<tnd::gpu::Q4K, 8>(int)"
// becomes "f<Q4K, 8>".
func short(name string) string {
	name = strings.ReplaceAll(name, "(anonymous namespace)::", "")
	depth, end := 0, len(name)
	for i, c := range name {
		switch c {
		case '<':
			depth++
		case '>':
			depth--
		case '(':
			if depth == 0 && i < end {
				end = i
			}
		}
	}
	name = strings.TrimPrefix(name[:end], "void ")
	return namespace.ReplaceAllString(name, "")
}

var namespace = regexp.MustCompile(`\b[a-z_][a-z0-9_]*::`)
