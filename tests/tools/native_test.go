package tools

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// nativeFolders says which folders of native/src the files of a folder may include, "gpu" standing for all below it.
// Within gpu/ the operations may use each other as long as there is no circle.
var nativeFolders = map[string][]string{
	"core":   {},
	"gguf":   {"core"},
	"quant":  {"core"},
	"cpu":    {"core", "gguf", "quant"},
	"gpu":    {"core", "gguf"},
	"models": {"core", "gguf"},
	"roles":  {"core", "gguf", "models"},
	"api":    {"core", "roles"},
}

// nativeIncludes reads the includes in quotes of files under native/src: folder → included folder → one file that does
// it. Every include has to exist in native/src, in native/include or, from gpu/runtime alone, in the emulation.
func nativeIncludes(t *testing.T) map[string]map[string]string {
	t.Helper()
	root, files := sources(t, []string{"native/src"}, ".cpp", ".h", ".cu", ".cuh")
	include := regexp.MustCompile(`(?m)^\s*#\s*include\s+"([^"]+)"`)
	edges := map[string]map[string]string{}
	for _, file := range files {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		from := path.Dir(strings.TrimPrefix(file, "native/src/"))
		for _, m := range include.FindAllStringSubmatch(string(data), -1) {
			to := path.Dir(m[1])
			switch {
			case exists(root, "native/include/"+m[1]):
			case strings.HasPrefix(m[1], "sim/host/") && exists(root, "native/"+m[1]):
				if from != "gpu/runtime" {
					t.Errorf("%s includes %s: only gpu/runtime knows of the emulation", file, m[1])
				}
			case !exists(root, "native/src/"+m[1]):
				t.Errorf("%s includes %s, which is not there", file, m[1])
			case from != to:
				if edges[from] == nil {
					edges[from] = map[string]string{}
				}
				edges[from][to] = file
			}
		}
	}
	return edges
}

func exists(root, file string) bool {
	_, err := os.Stat(filepath.Join(root, file))
	return err == nil
}

// circle returns folders that include each other in a ring, the first one repeated at the end; nil when there is none.
func circle(edges map[string]map[string]string) []string {
	done := map[string]bool{}
	var walk func(folder string, above []string) []string
	walk = func(folder string, above []string) []string {
		if i := slices.Index(above, folder); i >= 0 {
			return append(slices.Clone(above[i:]), folder)
		}
		if done[folder] {
			return nil
		}
		above = append(above, folder)
		for to := range edges[folder] {
			if ring := walk(to, above); ring != nil {
				return ring
			}
		}
		done[folder] = true
		return nil
	}
	for folder := range edges {
		if ring := walk(folder, nil); ring != nil {
			return ring
		}
	}
	return nil
}

// TestNativeFoldersPointDownwards: folders of the engine include what nativeFolders lets them and nothing in a circle.
func TestNativeFoldersPointDownwards(t *testing.T) {
	edges := nativeIncludes(t)
	for from, targets := range edges {
		top, _, _ := strings.Cut(from, "/")
		allowed, known := nativeFolders[top]
		if !known {
			t.Errorf("native/src/%s is a new folder: say in nativeFolders what it may include", top)
			continue
		}
		for to, file := range targets {
			if below, _, _ := strings.Cut(to, "/"); below != top && !slices.Contains(allowed, below) {
				t.Errorf("%s includes a file of %s", file, to)
			}
		}
	}
	if ring := circle(edges); ring != nil {
		t.Errorf("folders of native/src include each other in a circle: %s", strings.Join(ring, " → "))
		for i, from := range ring[:len(ring)-1] {
			t.Logf("%s → %s by %s", from, ring[i+1], edges[from][ring[i+1]])
		}
	}
	if len(edges["gpu/step"]) < 5 || edges["roles"]["models"] == "" {
		t.Errorf("includes were not read: %v", edges)
	}
}

// TestCircle: the search finds a ring and nothing in a tree with two ways to one folder.
func TestCircle(t *testing.T) {
	edges := map[string]map[string]string{"a": {"b": "", "c": ""}, "b": {"d": ""}, "c": {"d": ""}}
	if ring := circle(edges); ring != nil {
		t.Errorf("found a circle %v where there is none", ring)
	}
	edges["d"] = map[string]string{"b": ""}
	if ring := circle(edges); len(ring) != 3 {
		t.Errorf("circle %v, want b, d, b", ring)
	}
}
