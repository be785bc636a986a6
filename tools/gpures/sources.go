package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// What compiles a vendor's kernels, below the folder of the native sources: it counts as a part of every source.
var recipes = map[string][]string{
	"cuda": {"cmake/gpu.cmake", "cmake/cuda.cmake", "cmake/compile_gpu.sh"},
}

var includeLine = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*include[ \t]*"([^"]+)"`)

// digests returns a digest per .cu file below native/src/gpu: of its text, of every file of ours that it includes, and
// of what compiles it for the vendor. Conditions around an include are not read: more than is compiled may count.
func digests(native, vendor string) (map[string]string, error) {
	if recipes[vendor] == nil {
		return nil, fmt.Errorf("no digests of sources are kept for %s", vendor)
	}
	sources, err := filepath.Glob(filepath.Join(native, "src/gpu/*/*.cu"))
	if err != nil {
		return nil, err
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("%s: no kernels in src/gpu", native)
	}
	out := map[string]string{}
	for _, source := range sources {
		files := map[string]bool{}
		if err := included(native, source, files); err != nil {
			return nil, err
		}
		for _, recipe := range recipes[vendor] {
			files[filepath.Join(native, recipe)] = true
		}
		sum := sha256.New()
		for _, path := range slices.Sorted(maps.Keys(files)) {
			text, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			name, err := filepath.Rel(native, path)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(sum, "%s %d\n", filepath.ToSlash(name), len(text))
			_, _ = io.WriteString(sum, string(text)) // hashes do not fail
		}
		out[strings.TrimSuffix(filepath.Base(source), ".cu")] = hex.EncodeToString(sum.Sum(nil))[:16]
	}
	return out, nil
}

// included adds path and the files that it includes by quoted names, looked for as the compilers look for them.
func included(native, path string, files map[string]bool) error {
	path = filepath.Clean(path)
	if files[path] {
		return nil
	}
	files[path] = true
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, m := range includeLine.FindAllStringSubmatch(string(text), -1) {
		found := false
		for _, folder := range []string{filepath.Dir(path), filepath.Join(native, "src"), filepath.Join(native, "include"),
			native} {
			candidate := filepath.Join(folder, m[1])
			if _, err := os.Stat(candidate); err == nil {
				found = true
				if err := included(native, candidate, files); err != nil {
					return err
				}
				break
			}
		}
		if !found {
			return fmt.Errorf("%s includes %q, which is not among our sources", path, m[1])
		}
	}
	return nil
}

// compared tells of every kernel's source whether it is what the table was made from, by the compiler of a build
// folder. It is empty without a folder of sources, and for vendors whose digests are not kept.
func (t *Table) compared(folder, native string) (map[string]bool, error) {
	vendor := filepath.Base(folder)
	if native == "" || recipes[vendor] == nil {
		return nil, nil
	}
	compiler, _, err := readCompiler(folder)
	if err != nil {
		return nil, err
	}
	now, err := digests(native, vendor)
	if err != nil {
		return nil, err
	}
	same := map[string]bool{}
	for file, digest := range now {
		same[file] = compiler == t.Compilers[vendor] && digest == t.Sources[[2]string{vendor, file}]
	}
	return same, nil
}

// changed prints the objects of a build folder, relative to the build, that have to be compiled: those whose sources
// are not what the table was made from.
func (t *Table) changed(w io.Writer, folder, native string) error {
	same, err := t.compared(folder, native)
	if err == nil && same == nil {
		err = fmt.Errorf("%s: -changed is for CUDA's folder, and needs -sources", folder)
	}
	if err != nil {
		return err
	}
	for _, file := range slices.Sorted(maps.Keys(same)) {
		if !same[file] {
			fmt.Fprintf(w, "%s/%s.o\n", filepath.Base(folder), file)
		}
	}
	return nil
}
