package tools

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// TestShortenedTests: make test-go-whole runs every test with a guard, whether the guard stands in the test or in a
// function that it calls.
func TestShortenedTests(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(root, "tools", "shortened-tests.sh")).Output()
	if err != nil {
		t.Fatal(err)
	}
	pattern := strings.TrimSpace(string(out))
	shortened, err := regexp.Compile(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"TestAuto", "TestSteadyState", "TestSlowTrio", "TestSlowTrioTogether"} {
		if !shortened.MatchString(name) {
			t.Errorf("%s is not in %s", name, pattern)
		}
	}
	if shortened.MatchString("TestFlagsTable") {
		t.Errorf("TestFlagsTable, which has no guard, is in %s", pattern)
	}
}
