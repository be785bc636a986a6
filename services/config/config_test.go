package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type testCLI struct {
	Serve serveCmd `cmd:"" help:"Serve."`
	Other struct {
		Fast bool `help:"Fast."`
	} `cmd:"" help:"Other."`
}

type serveCmd struct {
	Flags
	Port    int           `default:"8000" help:"Port."`
	Grace   time.Duration `default:"30s" help:"Grace."`
	Cap     Size          `default:"0" help:"Cap."`
	APIKey  Secret        `name:"api-key" help:"Key."`
	Workers []string      `name:"worker" help:"Workers."`
	Strict  bool          `help:"Strict."`
	Width   int           `was:"breadth,span" help:"Width."`
	Words   []string      `arg:"" optional:"" help:"Words."`
	Offset  int           `help:"Offset."`
}

func (s *serveCmd) Check() []Warning {
	if s.Port == 23 {
		return []Warning{{"port", "is telnet's"}}
	}
	return nil
}

func (s *serveCmd) Validate() error {
	if s.Port < 0 || s.Port > 65535 {
		return fmt.Errorf("--port: %d is not a port", s.Port)
	}
	return nil
}

func parse(t *testing.T, file string, env map[string]string, args ...string) (testCLI, Result, string, string) {
	t.Helper()
	if file != "" {
		path := filepath.Join(t.TempDir(), "tandem.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	for k, v := range env {
		t.Setenv(k, v)
	}
	var cli testCLI
	var out, errOut bytes.Buffer
	r := Parse(&cli, "tandem", "Test.", args, Streams{&out, &errOut})
	return cli, r, out.String(), errOut.String()
}

func TestPrecedence(t *testing.T) {
	const file = "port: 1\ngrace: 1m\ncap: 1GiB\n"
	cases := []struct {
		name string
		file string
		env  map[string]string
		args []string
		want int
	}{
		{"default", "", nil, nil, 8000},
		{"file", file, nil, nil, 1},
		{"environment beats file", file, map[string]string{"TANDEM_PORT": "2"}, nil, 2},
		{"flag beats all", file, map[string]string{"TANDEM_PORT": "2"}, []string{"--port=3"}, 3},
		{"flag beats environment", "", map[string]string{"TANDEM_PORT": "2"}, []string{"--port", "3"}, 3},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cli, r, _, errOut := parse(t, c.file, c.env, append([]string{"serve"}, c.args...)...)
			if r.Done {
				t.Fatalf("ended with %d: %s", r.Exit, errOut)
			}
			if cli.Serve.Port != c.want {
				t.Errorf("port = %d, want %d", cli.Serve.Port, c.want)
			}
		})
	}
}

func TestFileValues(t *testing.T) {
	const file = `# settings
grace: 90s
cap: 512MiB     # with a unit
api_key: hunter2
worker: [a:1, "b:2,c"]
strict: true
`
	cli, r, _, errOut := parse(t, file, nil, "serve")
	if r.Done {
		t.Fatal(errOut)
	}
	want := serveCmd{Port: 8000, Grace: 90 * time.Second, Cap: 512 << 20, APIKey: "hunter2",
		Workers: []string{"a:1", "b:2,c"}, Strict: true}
	cli.Serve.Flags = Flags{}
	if d := cmp.Diff(want, cli.Serve); d != "" {
		t.Error(d)
	}
}

func TestFileFromEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(path, []byte("port: 77\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cli, r, _, errOut := parse(t, "", map[string]string{"TANDEM_CONFIG": path}, "serve")
	if r.Done || cli.Serve.Port != 77 {
		t.Fatalf("port %d, %+v %s", cli.Serve.Port, r, errOut)
	}
}

func TestUsageErrors(t *testing.T) {
	cases := []struct {
		name, file string
		args       []string
		want       string
	}{
		{"unknown flag", "", []string{"serve", "--prot", "1"}, "unknown flag --prot"},
		{"bad value", "", []string{"serve", "--cap", "many"}, `--cap: size "many" is not a number`},
		{"bad number", "", []string{"serve", "--port", "x"}, "--port"},
		{"validate", "", []string{"serve", "--port", "70000"}, "--port: 70000 is not a port"},
		{"unknown command", "", []string{"fly"}, "fly"},
		{"unknown key", "port: 1\nprot: 2\n", []string{"serve"}, `tandem.yaml:2: unknown key "prot", did you mean "port"?`},
		{"key twice", "port: 1\nport: 2\n", []string{"serve"}, "tandem.yaml"},
		{"nested", "serve:\n  port: 1\n", []string{"serve"}, `tandem.yaml:2`},
		{"not yaml", "port: [1\n", []string{"serve"}, "tandem.yaml"},
		{"list for one", "port: [1, 2]\n", []string{"serve"}, `tandem.yaml:1: key "port" takes one value`},
		{"missing file", "", []string{"serve", "--config", "/nonexistent/x.yaml"}, "--config"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, r, _, errOut := parse(t, c.file, nil, c.args...)
			if !r.Done || r.Exit != ExitUsage {
				t.Fatalf("result %+v, want exit %d; stderr: %s", r, ExitUsage, errOut)
			}
			if !strings.Contains(errOut, c.want) {
				t.Errorf("stderr %q does not say %q", errOut, c.want)
			}
		})
	}
}

func TestHelpExitsZero(t *testing.T) {
	_, r, out, _ := parse(t, "", nil, "serve", "--help")
	if !r.Done || r.Exit != 0 || !strings.Contains(out, "--port") || !strings.Contains(out, "TANDEM_PORT") {
		t.Fatalf("%+v\n%s", r, out)
	}
	if strings.Contains(out, "TANDEM_DUMP_CONFIG") {
		t.Error("--dump-config must not be taken from the environment")
	}
}

func TestDumpMasksSecrets(t *testing.T) {
	_, r, out, _ := parse(t, "cap: 2GiB\n", map[string]string{"TANDEM_API_KEY": "hunter2"}, "serve", "--dump-config")
	if !r.Done || r.Exit != 0 {
		t.Fatalf("%+v", r)
	}
	if strings.Contains(out, "hunter2") {
		t.Fatal("secret printed")
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"port": 8000.0, "grace": "30s", "cap": "2GiB", "api-key": "***", "worker": nil, "strict": false,
		"width": 0.0, "offset": 0.0}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestVerifyConfig(t *testing.T) {
	if _, r, _, _ := parse(t, "port: 5\n", nil, "serve", "--verify-config"); !r.Done || r.Exit != 0 {
		t.Errorf("valid: %+v", r)
	}
	if _, r, _, _ := parse(t, "port: 99999\n", nil, "serve", "--verify-config"); !r.Done || r.Exit != ExitUsage {
		t.Errorf("invalid: %+v", r)
	}
}

func TestContext(t *testing.T) {
	for text, want := range map[string]Context{
		"auto": 0, "AUTO": 0, "0": 0, "1": 1, " 4096 ": 4096, "2147483647": 2147483647,
	} {
		var got, back Context
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
		if err := back.UnmarshalText([]byte(got.String())); err != nil || back != got {
			t.Errorf("%s reads back as %d, %v", got, back, err)
		}
	}
	for _, bad := range []string{"", "-1", "1.5", "2147483648", "all", "4k"} {
		c := Context(7)
		if err := c.UnmarshalText([]byte(bad)); err == nil || c != 7 {
			t.Errorf("%q is %d, want an error", bad, c)
		}
	}
}

func TestSize(t *testing.T) {
	cases := []struct {
		text string
		want Size
		out  string
	}{
		{"0", 0, "0"}, {"1", 1, "1"}, {"8GiB", 8 << 30, "8GiB"}, {"8g", 8 << 30, "8GiB"}, {"1.5 GiB", 3 << 29, "1536MiB"},
		{"512MB", 512e6, "500000KiB"}, {"64k", 64 << 10, "64KiB"}, {"1000B", 1000, "1000"}, {"2TB", 2e12, "1953125000KiB"},
	}
	for _, c := range cases {
		got, err := ParseSize(c.text)
		if err != nil || got != c.want || got.String() != c.out {
			t.Errorf("ParseSize(%q) = %d (%s), %v; want %d (%s)", c.text, got, got, err, c.want, c.out)
		}
		if back, err := ParseSize(got.String()); err != nil || back != got {
			t.Errorf("%s reads back as %d, %v", got, back, err)
		}
	}
	for _, bad := range []string{"", "x", "-1", "1XB", "1e300", "nan", "GiB"} {
		if v, err := ParseSize(bad); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", bad, v)
		}
	}
	if got := Size(8 << 30).Human(); got != "8.0 GiB" {
		t.Errorf("Human = %q", got)
	}
}

func TestEarlierNamesStillWork(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		args []string
		note string
	}{
		"flag":             {"", []string{"serve", "--breadth", "7"}, "--breadth is called --width now"},
		"flag with equals": {"", []string{"serve", "--span=7"}, "--span is called --width now"},
		"key":              {"breadth: 7\n", []string{"serve"}, ""},
		"new name":         {"", []string{"serve", "--width", "7"}, ""},
	} {
		cli, r, _, errOut := parse(t, c.file, nil, c.args...)
		if r.Done || cli.Serve.Width != 7 {
			t.Errorf("%s: width %d, %+v, %s", name, cli.Serve.Width, r, errOut)
		}
		if !strings.Contains(errOut, c.note) || c.note == "" && errOut != "" {
			t.Errorf("%s: stderr %q, want %q", name, errOut, c.note)
		}
	}
	if _, _, out, _ := parse(t, "", nil, "serve", "--help"); strings.Contains(out, "breadth") {
		t.Error("help shows an earlier name")
	}
}

func TestUnknownVariablesAreNamed(t *testing.T) {
	for variable, want := range map[string]string{
		"TANDEM_PROT":     `TANDEM_PROT has no effect, no setting is called so, did you mean "TANDEM_PORT"?`,
		"TANDEM_BREADTH":  "TANDEM_BREADTH has no effect, it is called TANDEM_WIDTH now",
		"TANDEM_KV":       "TANDEM_KV has no effect, it is called TANDEM_CACHE_TYPE_K now",
		"TANDEM_PORT":     "",
		"TANDEM_TEST_ANY": "",
		"TANDEMX":         "",
		"TANDEM_BIND":     "",
	} {
		_, r, _, errOut := parse(t, "", map[string]string{variable: "1"}, "serve")
		if r.Done || !strings.Contains(errOut, want) || want == "" && errOut != "" {
			t.Errorf("%s: %+v, stderr %q, want %q", variable, r, errOut, want)
		}
		t.Setenv(variable, "")
	}
}

type roleCLI struct{ testCLI }

func (roleCLI) Variables() map[string][]string {
	return map[string][]string{"port": {"DRAFT_PORT", "PORT"}, "cap": nil}
}

func TestVariablesOfARole(t *testing.T) {
	read := func(env map[string]string) serveCmd {
		for k, v := range env {
			t.Setenv(k, v)
		}
		var cli roleCLI
		var out, errOut bytes.Buffer
		if r := Parse(&cli, "tandem", "Test.", []string{"serve"}, Streams{&out, &errOut}); r.Done {
			t.Fatal(errOut.String())
		}
		return cli.Serve
	}
	if got := read(map[string]string{"TANDEM_PORT": "5", "TANDEM_CAP": "9"}); got.Port != 5 || got.Cap != 0 {
		t.Errorf("port %d, cap %d: the second variable holds, a flag without variables takes none", got.Port, got.Cap)
	}
	if got := read(map[string]string{"TANDEM_DRAFT_PORT": "6"}); got.Port != 6 {
		t.Errorf("port %d: the first variable wins", got.Port)
	}
}

func TestFlagsBetweenArguments(t *testing.T) {
	for _, c := range []struct {
		args  string
		words string
		port  int
	}{
		{"serve a --port 3 b", "a b", 3}, {"serve a --port=3 b --strict c", "a b c", 3}, {"serve --port 3 a b", "a b", 3},
		{"serve a -- --port b", "a --port b", 8000}, {"serve a - --port 3 b", "a - b", 3},
		{"serve a --span 4 b", "a b", 8000},
	} {
		cli, r, _, errOut := parse(t, "", nil, strings.Fields(c.args)...)
		if r.Done || strings.Join(cli.Serve.Words, " ") != c.words || cli.Serve.Port != c.port {
			t.Errorf("%s: words %q, port %d, stderr %s", c.args, cli.Serve.Words, cli.Serve.Port, errOut)
		}
	}
	if _, r, _, errOut := parse(t, "", nil, "serve", "a", "--prot", "3", "b"); !r.Done ||
		!strings.Contains(errOut, "unknown flag --prot") {
		t.Errorf("unknown flag between arguments: %+v %s", r, errOut)
	}
}

func TestListSettings(t *testing.T) {
	_, r, out, _ := parse(t, "", nil, "--list-settings")
	var list []Setting
	if err := json.Unmarshal([]byte(out), &list); err != nil || !r.Done || r.Exit != 0 {
		t.Fatalf("%v %+v %s", err, r, out)
	}
	for _, s := range list {
		if s.Flag == "width" {
			if d := cmp.Diff(Setting{Command: "serve", Flag: "width", Earlier: []string{"breadth", "span"},
				Variables: []string{"TANDEM_WIDTH"}, Help: "Width."}, s); d != "" {
				t.Error(d)
			}
			return
		}
	}
	t.Errorf("width is missing: %s", out)
}

// TestNegativeNumbers: a number below zero may stand after its flag as a word of its own.
func TestNegativeNumbers(t *testing.T) {
	for _, args := range [][]string{{"serve", "--offset", "-1"}, {"serve", "--offset=-1"},
		{"serve", "--strict", "--offset", "-1", "--port", "2"}} {
		cli, r, _, errOut := parse(t, "", nil, args...)
		if r.Done || cli.Serve.Offset != -1 {
			t.Errorf("%q: offset %d, %s", args, cli.Serve.Offset, errOut)
		}
	}
	if cli, r, _, errOut := parse(t, "", nil, "serve", "--", "--offset", "-1"); r.Done ||
		strings.Join(cli.Serve.Words, " ") != "--offset -1" {
		t.Errorf("after --: %q, %s", cli.Serve.Words, errOut)
	}
	// What is no number stays what it was: a flag.
	for _, args := range [][]string{{"serve", "--offset", "--strict"}, {"serve", "--offset", "-x"},
		{"serve", "--strict", "-1"}} {
		if _, r, _, _ := parse(t, "", nil, args...); !r.Done || r.Exit != ExitUsage {
			t.Errorf("%q is accepted", args)
		}
	}
}

func TestExposed(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:80": false, "127.9.9.9:80": false, "[::1]:80": false, "localhost:80": false, "LOCALHOST:80": false,
		"unix:///x": false, "unix:x": false, "0.0.0.0:80": true, ":80": true, "[::]:80": true, "10.0.0.1:80": true,
		"host.example:80": true, "192.168.0.4": true, "": true,
	} {
		if got := Exposed(address); got != want {
			t.Errorf("Exposed(%q) = %v", address, got)
		}
	}
}

func TestVerifyShowsWarnings(t *testing.T) {
	for port, want := range map[string]string{"23": "tandem: warning: --port: is telnet's\n", "24": ""} {
		_, r, out, errOut := parse(t, "", nil, "serve", "--verify-config", "--port", port)
		if r.Exit != ExitOK || errOut != want || !strings.Contains(out, "valid") {
			t.Errorf("port %s: exit %d, %q %q", port, r.Exit, out, errOut)
		}
	}
}
