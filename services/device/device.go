// Package device names the devices that engines run on and finds the engine libraries that serve them.
package device

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Name says where an engine runs: cpu, cuda:0, hip:1.
type Name struct {
	Backend string // cpu, cuda, hip: the library that serves it
	Index   int    // of the backend's devices, as its driver counts them
}

var pattern = regexp.MustCompile(`^([a-z]+)(?::(\d{1,4}))?$`)

// Parse reads a device's name. A backend alone means its first device; the cpu has no number.
func Parse(text string) (Name, error) {
	m := pattern.FindStringSubmatch(text)
	if m == nil || m[1] == "cpu" && m[2] != "" {
		return Name{}, fmt.Errorf("%q is no device: cpu, cuda:N for NVIDIA cards, hip:N for AMD cards are, N counted from 0",
			text)
	}
	switch m[1] {
	case "gpu", "nvidia", "amd", "rocm", "vulkan", "metal":
		return Name{}, fmt.Errorf("%q is no device: cpu, cuda:N for NVIDIA cards, hip:N for AMD cards are, N counted from 0",
			text)
	}
	d := Name{Backend: m[1]}
	if m[2] != "" {
		d.Index, _ = strconv.Atoi(m[2]) // at most four digits
	}
	return d, nil
}

// String is the inverse of Parse.
func (d Name) String() string {
	if d.Backend == "cpu" {
		return d.Backend
	}
	return fmt.Sprintf("%s:%d", d.Backend, d.Index)
}

const libraryPrefix, librarySuffix = "libtandem_", ".so"

// FindLibrary returns the path of the engine library in dir that serves a device. When there is none, the error says
// which backends dir has and how to get the one that is missing.
func FindLibrary(dir string, d Name) (string, error) {
	path := filepath.Join(dir, libraryPrefix+d.Backend+librarySuffix)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	have := "no engine library at all"
	if backends := backendsIn(dir); len(backends) > 0 {
		have = "libraries for " + strings.Join(backends, ", ")
	}
	hint := ""
	switch d.Backend {
	case "cuda", "hip":
		hint = "; make build-" + d.Backend + " makes it"
	case "cpu":
		hint = "; make build makes it"
	}
	return "", fmt.Errorf("device %s needs %s in %s, which has %s%s", d, filepath.Base(path), dir, have, hint)
}

// backendsIn lists the backends that dir has libraries for, in alphabetical order.
func backendsIn(dir string) []string {
	paths, err := filepath.Glob(filepath.Join(dir, libraryPrefix+"*"+librarySuffix))
	if err != nil {
		return nil // dir holds a bad pattern: it is no folder of ours
	}
	var names []string
	for _, path := range paths {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), libraryPrefix), librarySuffix)
		names = append(names, name)
	}
	return names
}
