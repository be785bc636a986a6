// Package agents runs real agent clients, started by the launchers of deploy/clients, against a cluster on the scripted
// engine: a turn with a tool call and an answer, then a second turn that uses the tool's result. tools/clients.sh
// installs the clients; those that are missing are skipped.
package agents

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// agent is a client with the ways to run its two turns.
type agent struct {
	folder, program string
	first, second   []string // arguments of the launcher before the prompt
	env             []string
}

var all = []agent{
	{
		folder: "claude-code", program: "claude", first: []string{"--allowedTools", "Bash", "-p"},
		second: []string{"--continue", "-p"},
		// Its first request alone fills half of the demonstration model's context; it must not compact it away in between.
		env: []string{"CLAUDE_CODE_MAX_CONTEXT_TOKENS=200000"},
	},
	{
		folder: "codex", program: "codex",
		first: []string{"exec", "--skip-git-repo-check", "-c", `approval_policy="never"`, "-c",
			`sandbox_mode="danger-full-access"`},
		second: []string{"exec", "--skip-git-repo-check", "resume", "--last"},
	},
	{folder: "opencode", program: "opencode", first: []string{"run"}, second: []string{"run", "--continue"},
		env: []string{`OPENCODE_PERMISSION={"*":"allow"}`}},
	{folder: "pi", program: "pi", first: []string{"-p"}, second: []string{"-p", "--continue"}},
	{
		folder: "openclaw", program: "openclaw",
		first:  []string{"agent", "--local", "--agent", "main", "--session-id", "one", "-m"},
		second: []string{"agent", "--local", "--agent", "main", "--session-id", "one", "-m"},
	},
}

// The word that the tool prints stands nowhere but in its result.
const (
	command  = "echo banana-$((40+2))"
	result   = "banana-42"
	turnOne  = "The command printed banana-42: the first turn is done."
	turnTwo  = "Earlier the command printed banana-42: the second turn is done."
	patience = 2 * time.Minute
)

// rules answer by what the prompt shows: the second question after a result, a result, the first question beside a
// shell tool by the name that the client gives it.
func rules() []cluster.Rule {
	call := func(tool, parameter string) string {
		extra := ""
		if tool == "Bash" || tool == "bash" {
			extra = "<parameter=description>\nPrint a word\n</parameter>\n"
		}
		return fmt.Sprintf("I will run it.\n\n<tool_call>\n<function=%s>\n<parameter=%s>\n%s\n</parameter>\n%s</function>\n</tool_call>", tool, parameter, command, extra)
	}
	plain := []cluster.Rule{
		{Prompt: `<tool_response>.*` + result + `.*STEP-TWO`, Emit: turnTwo},
		{Prompt: `<tool_response>.*` + result, Emit: turnOne},
	}
	for _, shell := range [][2]string{{"Bash", "command"}, {"exec_command", "cmd"}, {"shell_command", "command"},
		{"bash", "command"}, {"exec", "command"}} {
		plain = append(plain, cluster.Rule{Prompt: `<tools>.*"name": "` + shell[0] + `".*STEP-ONE`,
			Emit: call(shell[0], shell[1])})
	}
	plain = append(plain, cluster.Rule{Emit: "Nothing matched."})
	var out []cluster.Rule
	for _, r := range plain {
		thinking := r
		thinking.Prompt, thinking.Emit = `(?s)`+r.Prompt+`.*<think>\n$`, "Let me see.\n</think>\n\n"+r.Emit
		r.Prompt = `(?s)` + r.Prompt
		out = append(out, thinking, r)
	}
	return out
}

func TestAgents(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	clients := filepath.Join(root, "build", "clients", "bin")
	var installed []agent
	for _, a := range all {
		if _, err := os.Stat(filepath.Join(clients, a.program)); err == nil {
			installed = append(installed, a)
		}
	}
	if len(installed) == 0 {
		cluster.SkipClients(t, "TANDEM_TEST_AGENTS", "no agent client is installed: make test-clients does it")
	}
	if missing := cluster.Missing(root); missing != nil {
		t.Fatalf("programs are missing in bin/: %v; run make build", missing)
	}
	options, err := cluster.Scripted(t.TempDir(), rules())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, a := range all {
		t.Run(a.folder, func(t *testing.T) {
			if _, err := os.Stat(filepath.Join(clients, a.program)); err != nil {
				t.Skipf("%s is not installed: make test-clients does it", a.program)
			}
			s := session{agent: a, launcher: filepath.Join(root, "deploy", "clients", a.folder, "launch"),
				clients: clients, url: c.HTTP,
				home: t.TempDir(), work: t.TempDir()}
			for _, turn := range []struct {
				args         []string
				prompt, want string
			}{{a.first, "STEP-ONE: run the command", turnOne}, {a.second, "STEP-TWO: what did it print?", turnTwo}} {
				start := time.Now()
				out, err := s.run(t.Context(), turn.args, turn.prompt)
				if err != nil || !strings.Contains(out, turn.want) {
					t.Fatalf("%q: %v, want %q in:\n%s\nlog of the cluster:\n%s", turn.prompt, err, turn.want, out, c.Log())
				}
				t.Logf("%q answered after %.1f s", turn.prompt, time.Since(start).Seconds())
			}
		})
	}
}

// session is one client with a home and a working directory of its own.
type session struct {
	agent
	launcher, clients, url, home, work string
}

// run makes one turn and returns what the client printed.
func (s *session) run(ctx context.Context, args []string, prompt string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.launcher, append(append([]string{}, args...), prompt)...)
	cmd.Dir = s.work
	cmd.WaitDelay = 5 * time.Second // helpers of a client may hold its output open
	cmd.Env = []string{
		"PATH=" + s.clients + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + s.home, "TMPDIR=" + os.TempDir(),
		"TANDEM_SERVER=" + s.url, "TERM=dumb", "LANG=C.UTF-8",
	}
	cmd.Env = append(cmd.Env, s.env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}
