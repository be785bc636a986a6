package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// An Object is what a HIP object says of its kernels, all by mangled name. Clang compiles a source once for the host,
// where no macro of a processor is set, and once for each processor; a launch finds its kernel by name. Where a
// template argument depends on such a macro, the two sides name different kernels: that compiles and links, and every
// launch fails.
type Object struct {
	Host map[string]bool            // kernels that the host launches
	Code map[string]map[string]bool // by processor: kernels that its code holds
}

// checkObjects makes a case per object of the folders that hold HIP's. Those are told by compiler.txt, which lists
// processors for clang only (readCompiler): CUDA's objects hold no bundle, and nvcc's host pass finds its
// kernels otherwise.
func checkObjects(folders []string) ([]testCase, error) {
	var cases []testCase
	for _, folder := range folders {
		_, archs, err := readCompiler(folder)
		if err != nil {
			return nil, err
		}
		if len(archs) == 0 {
			continue
		}
		paths, err := objectPaths(folder)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			file := filepath.Base(path)
			c := testCase{Name: filepath.Base(folder) + " " + strings.TrimSuffix(file, ".o") + " kernel names"}
			bad, err := checkObject(path, archs)
			if err != nil {
				bad = []string{err.Error()}
			}
			for i, text := range bad {
				bad[i] = "  " + file + ": " + text
			}
			if len(bad) > 0 {
				c.Failure = &failure{strings.Join(bad, "\n")}
			}
			cases = append(cases, c)
		}
	}
	return cases, nil
}

// objectPaths lists the objects of a folder, and those that are not there but have a report, which fail when opened.
func objectPaths(folder string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.o"))
	if err != nil {
		return nil, err
	}
	reports, err := filepath.Glob(filepath.Join(folder, "*.o.res"))
	if err != nil {
		return nil, err
	}
	for _, path := range reports {
		paths = append(paths, strings.TrimSuffix(path, ".res"))
	}
	slices.Sort(paths)
	paths = slices.Compact(paths)
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s holds no objects", folder)
	}
	return paths, nil
}

func checkObject(path string, archs []string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	o, err := readObject(f)
	if err != nil {
		return nil, err
	}
	return o.judge(archs)
}

// judge says in what the host and each processor's code differ; nothing is good. archs are the processors that there
// must be code for.
func (o Object) judge(archs []string) ([]string, error) {
	archs = slices.Concat(archs, slices.Collect(maps.Keys(o.Code)))
	slices.Sort(archs)
	var names, says []string // a kernel and what is wrong with it
	var bad []string
	for _, arch := range slices.Compact(archs) {
		code, ok := o.Code[arch]
		if !ok && len(o.Host) > 0 {
			bad = append(bad, "the host launches kernels, and there is no code for "+arch)
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(o.Host)) {
			if !code[name] {
				names, says = append(names, name), append(says, "the host launches a kernel that the code for "+arch+" lacks: ")
			}
		}
		for _, name := range slices.Sorted(maps.Keys(code)) {
			if !o.Host[name] {
				names, says = append(names, name), append(says, "the code for "+arch+" holds a kernel that the host lacks: ")
			}
		}
	}
	// Whole names: the two sides may differ in a namespace or a parameter, which short leaves out.
	names, err := readable(names)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		bad = append(bad, says[i]+name)
	}
	return bad, nil
}

func readObject(r io.ReaderAt) (Object, error) {
	o := Object{Code: map[string]map[string]bool{}}
	f, err := elf.NewFile(r)
	if err != nil {
		return o, fmt.Errorf("object: %w", err)
	}
	symbols, err := allSymbols(f)
	if err != nil {
		return o, fmt.Errorf("object: %w", err)
	}
	if o.Host, err = hostKernels(symbols); err != nil {
		return o, err
	}
	for _, section := range f.Sections {
		if section.Name != ".hip_fatbin" {
			continue
		}
		data, err := section.Data()
		if err != nil {
			return o, fmt.Errorf("section %s: %w", section.Name, err)
		}
		entries, err := readBundles(data)
		if err != nil {
			return o, fmt.Errorf("section %s: %w", section.Name, err)
		}
		for _, e := range entries {
			kernels, err := codeKernels(e.code)
			if err != nil {
				return o, fmt.Errorf("code for %s: %w", e.arch, err)
			}
			if o.Code[e.arch] == nil {
				o.Code[e.arch] = map[string]bool{}
			}
			maps.Copy(o.Code[e.arch], kernels)
		}
	}
	return o, nil
}

// allSymbols reads both tables: code without the one still has the other.
func allSymbols(f *elf.File) ([]elf.Symbol, error) {
	symbols, err := f.Symbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return nil, err
	}
	dynamic, err := f.DynamicSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return nil, err
	}
	return append(symbols, dynamic...), nil
}

const stubPrefix = "__device_stub__"

// hostKernels finds the kernels whose stubs the object holds: the host function that stands for a kernel and registers
// its name. A stub that is only referred to belongs to another object.
func hostKernels(symbols []elf.Symbol) (map[string]bool, error) {
	kernels := map[string]bool{}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Section == elf.SHN_UNDEF || !strings.Contains(s.Name, stubPrefix) {
			continue
		}
		kernel, err := kernelOfStub(s.Name)
		if err != nil {
			return nil, err
		}
		kernels[kernel] = true
	}
	return kernels, nil
}

// kernelOfStub drops the prefix from the identifier of a mangled name and shortens its length. The lengths are followed
// from the front, because digits before an identifier need not be its own: "_GLOBAL__N_1" "33" "__device_stub__...".
// Names before the identifier that are no plain identifiers (of templates, of std) do not occur: a kernel is no member.
func kernelOfStub(name string) (string, error) {
	if kernel, ok := strings.CutPrefix(name, stubPrefix); ok && kernel != "" {
		return kernel, nil // extern "C"
	}
	bad := fmt.Errorf("cannot tell the kernel of the stub %s", name)
	rest, ok := strings.CutPrefix(name, "_Z")
	if !ok {
		return "", bad
	}
	rest = strings.TrimPrefix(rest, "N")
	for {
		rest = strings.TrimPrefix(rest, "L") // internal linkage
		from := strings.IndexFunc(rest, func(c rune) bool { return c < '0' || c > '9' })
		if from < 1 {
			return "", bad
		}
		n, err := strconv.Atoi(rest[:from])
		if err != nil || n < 1 || n > len(rest)-from {
			return "", bad
		}
		if kernel, ok := strings.CutPrefix(rest[from:from+n], stubPrefix); ok && kernel != "" {
			return name[:len(name)-len(rest)] + strconv.Itoa(len(kernel)) + kernel + rest[from+n:], nil
		}
		rest = rest[from+n:]
	}
}

// codeKernels finds the kernels of one processor's code by their descriptors, the symbols <kernel>.kd.
func codeKernels(code []byte) (map[string]bool, error) {
	f, err := elf.NewFile(bytes.NewReader(code))
	if err != nil {
		return nil, err
	}
	if f.Machine != elf.EM_AMDGPU {
		return nil, fmt.Errorf("the machine is %v, want %v", f.Machine, elf.EM_AMDGPU)
	}
	symbols, err := allSymbols(f)
	if err != nil {
		return nil, err
	}
	kernels := map[string]bool{}
	for _, s := range symbols {
		if kernel, ok := strings.CutSuffix(s.Name, ".kd"); ok && s.Section != elf.SHN_UNDEF {
			kernels[kernel] = true
		}
	}
	return kernels, nil
}

type bundleEntry struct {
	arch string // gfx1100, gfx90a:xnack-
	code []byte // ELF
}

const (
	bundleMagic     = "__CLANG_OFFLOAD_BUNDLE__"
	compressedMagic = "CCOB"
)

// readBundles reads the bundles of clang-offload-bundler that stand in a section one after the other, with zeros
// between them where they are aligned. The layout: https://clang.llvm.org/docs/ClangOffloadBundler.html
func readBundles(data []byte) ([]bundleEntry, error) {
	var entries []bundleEntry
	for at := 0; ; {
		at = len(data) - len(bytes.TrimLeft(data[at:], "\x00"))
		if at == len(data) {
			return entries, nil
		}
		if bytes.HasPrefix(data[at:], []byte(compressedMagic)) {
			return nil, fmt.Errorf("the bundle at byte %d is compressed, compile with --no-offload-compress", at)
		}
		found, size, err := readBundle(data[at:])
		if err != nil {
			return nil, fmt.Errorf("bundle at byte %d: %w", at, err)
		}
		entries = append(entries, found...)
		at += size
	}
}

// readBundle reads the bundle that data begins with, and says how long it is.
func readBundle(data []byte) (entries []bundleEntry, size int, err error) {
	rest, ok := bytes.CutPrefix(data, []byte(bundleMagic))
	if !ok {
		return nil, 0, fmt.Errorf("it does not begin with %s", bundleMagic)
	}
	number := func() (n uint64) {
		if err == nil && len(rest) < 8 {
			err = errors.New("it ends inside its head")
		}
		if err == nil {
			n, rest = binary.LittleEndian.Uint64(rest), rest[8:]
		}
		return n
	}
	type place struct {
		id             string
		offset, length uint64
	}
	var places []place
	for i, count := uint64(0), number(); i < count && err == nil; i++ {
		p := place{offset: number(), length: number()}
		idLength := number()
		if err == nil && idLength > uint64(len(rest)) {
			err = errors.New("it ends inside its head")
		}
		if err == nil {
			p.id, rest = string(rest[:idLength]), rest[idLength:]
			places = append(places, p)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	head := uint64(len(data) - len(rest))
	size = int(head)
	for _, p := range places {
		if p.length > 0 && p.offset < head || p.offset > uint64(len(data)) || p.length > uint64(len(data))-p.offset {
			return nil, 0, fmt.Errorf("entry %s has %d bytes at %d, the head ends at %d and the data at %d",
				p.id, p.length, p.offset, head, len(data))
		}
		size = max(size, int(p.offset+p.length))
		if strings.HasPrefix(p.id, "host-") {
			continue // empty: the bundle is part of the host's object
		}
		gfx := strings.Index(p.id, "gfx")
		if gfx < 0 {
			return nil, 0, fmt.Errorf("entry %q names no processor", p.id)
		}
		entries = append(entries, bundleEntry{p.id[gfx:], data[p.offset : p.offset+p.length]})
	}
	return entries, size, nil
}
