package tools

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// heading is a line that links can lead to, notInAnchor what forges leave out of its anchor.
var (
	heading     = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInAnchor = regexp.MustCompile(`[^\pL\d _-]`)
)

// anchorsOf returns the anchors of a document's headings.
func anchorsOf(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		out[strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return out
}

// TestDocumentsNameWhatExists holds all documents to the tree: files and headings that they link to are there, targets
// of make are in the Makefile, and ports are the defaults.
func TestDocumentsNameWhatExists(t *testing.T) {
	root, documents := tracked(t, ".md")
	read := func(path string) string {
		data, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	makefile := read("Makefile")
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#([^)]*))?\)`)
	target := regexp.MustCompile("`make ([a-z-]+)")
	anchors := map[string]map[string]bool{}
	for _, name := range documents {
		anchors[name] = anchorsOf(strings.Join(prose(read(name)), "\n"))
	}
	for _, name := range documents {
		text := strings.Join(prose(read(name)), "\n")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			}
			if other := filepath.Join(filepath.Dir(name), m[1]); m[2] != "" && !anchors[other][m[2]] {
				t.Errorf("%s links to %s, which has no heading %s", name, m[1], m[2])
			}
		}
		for _, m := range regexp.MustCompile(`\]\(#([^)]+)\)`).FindAllStringSubmatch(text, -1) {
			if !anchors[name][m[1]] {
				t.Errorf("%s has no heading %s", name, m[1])
			}
		}
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s: make %s is no target", name, m[1])
			}
		}
	}
	for _, unit := range []string{"tandem.service", "tandem-gateway.service", "tandem-worker@.service"} {
		text := read("deploy/systemd/" + unit)
		for _, want := range []string{"ExecStart=/usr/local/bin/", "RestartPreventExitStatus=2", "\n[Install]\n",
			// What hangs is killed, also when it is stopped and cannot take another signal, and replaced.
			"\nType=notify\n", "\nWatchdogSec=", "\nWatchdogSignal=SIGKILL\n", "\nRestart="} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %q", unit, want)
			}
		}
	}
	// The ports that the text for operators gives are the defaults.
	flags := read("README.md")
	for flag, port := range map[string]string{"--port": "8000", "--grpc-port": "8103", "--registry-listen": "8104"} {
		row := regexp.MustCompile("\\| `" + flag + "` \\| [^|]*" + port + " \\|")
		if !row.MatchString(flags) || !strings.Contains(read("docs/operations.md"), "| "+port+"/tcp |") {
			t.Errorf("%s is not %s in README.md and docs/operations.md", flag, port)
		}
	}
}
