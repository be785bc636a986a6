// Package settings holds the names of all settings of all programs together: one name has one meaning, one meaning has
// one name.
package settings

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-inference/tandem/tests/cluster"
)

var update = flag.Bool("update", false, "rewrite the list of variables in services/config")

// setting is one flag of a program, as --list-settings prints it.
type setting struct {
	Program   string
	Command   string
	Flag      string
	Aliases   []string
	Earlier   []string
	Variables []string
	Default   string
	Help      string
	Hidden    bool
}

func (s setting) String() string { return strings.TrimSpace(s.Program+" "+s.Command) + " --" + s.Flag }

var programs = map[string]string{
	"tandem": "./gateway/cmd/tandem", "worker-target": "./worker-target/cmd/worker-target",
	"worker-draft": "./worker-draft/cmd/worker-draft", "worker-prefill": "./worker-prefill/cmd/worker-prefill",
}

// all builds the programs from the sources that are tested and asks them for their settings.
func all(t *testing.T) (root string, settings []setting) {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	if settings, err = ask(); err != nil {
		t.Fatal(err)
	}
	return root, settings
}

var ask = sync.OnceValues(func() (settings []setting, err error) {
	root, err := cluster.Root()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "settings")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		build := exec.Command("go", "build", "-o", filepath.Join(dir, name), programs[name])
		build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", name, err, out)
		}
		out, err := exec.Command(filepath.Join(dir, name), "--list-settings").Output()
		if err != nil {
			return nil, fmt.Errorf("%s --list-settings: %w", name, err)
		}
		var list []setting
		if err := json.Unmarshal(out, &list); err != nil {
			return nil, err
		}
		if len(list) < 10 {
			return nil, fmt.Errorf("%s has %d settings", name, len(list))
		}
		for _, s := range list {
			s.Program = name
			settings = append(settings, s)
		}
	}
	return settings, nil
})

// meanings are the names that several commands have with help texts of their own: what they mean to all of them. A name
// that is not here must have the same help text wherever it occurs.
var meanings = map[string]string{
	"model":            "the model file that the program serves; tandem reads tokenizer and template from the target's",
	"device":           "device of the engines that the program starts",
	"threads":          "CPU threads of the engines that the program starts",
	"max-ctx":          "longest context in tokens, 0 = the model's",
	"lanes":            "requests at a time",
	"memory-cap":       "memory of the engine",
	"cache-type-k":     "type of cached keys",
	"cache-type-v":     "type of cached values",
	"ddtree-budget":    "nodes of draft trees when a request does not say, 0 = by the device",
	"draft-cache-type": "type of the draft's cached keys and values",
	"cache-dir":        "folder of what workers received from peers, and of digests of model files",
	"engine":           "path of the engine program",
	"draft":            "the draft's model file",
	"prefill-drafter":  "the scorer's model file",
	"api-key":          "a key of the gateway: servers ask for it, clients present it",
	"server":           "HTTP address of the gateway to ask",
	"timeout":          "longest wait of a health check",
	"certs":            "folder of the process's certificate",
	"listen":           "where the process serves",
	"plaintext":        "other hosts are talked to without certificates",
	"json":             "results as JSON: doctor prints them, bench writes them to a file",
}

// variableMeanings are the variables that stand for flags of different names: what they mean to all of them.
var variableMeanings = map[string]string{
	"TANDEM_DRAFT":            "the draft's model file",
	"TANDEM_PREFILL_DRAFTER":  "the scorer's model file",
	"TANDEM_DRAFT_DEVICE":     "device of the draft's engine",
	"TANDEM_PREFILL_DEVICE":   "device of the scorer's engine",
	"TANDEM_TARGET_DEVICE":    "device of the target's engine",
	"TANDEM_DRAFT_THREADS":    "CPU threads of draft and scorer",
	"TANDEM_DRAFT_CACHE_TYPE": "type of the draft's cached keys and values",
}

// TestOneNameOneMeaning holds flags and variables of all programs to each other.
func TestOneNameOneMeaning(t *testing.T) {
	_, settings := all(t)
	byFlag, byVariable, byHelp := map[string][]setting{}, map[string][]setting{}, map[string]map[string]bool{}
	for _, s := range settings {
		byFlag[s.Flag] = append(byFlag[s.Flag], s)
		for _, v := range s.Variables {
			byVariable[v] = append(byVariable[v], s)
		}
		if byHelp[s.Help] == nil {
			byHelp[s.Help] = map[string]bool{}
		}
		byHelp[s.Help][s.Flag] = true
	}
	for name, list := range byFlag {
		for _, s := range list[1:] {
			if s.Help != list[0].Help && meanings[name] == "" {
				t.Errorf("%v and %v have one name and two meanings:\n  %s\n  %s", list[0], s, list[0].Help, s.Help)
			}
		}
	}
	for help, names := range byHelp {
		if len(names) > 1 {
			t.Errorf("%v are names of one meaning: %s", slices.Sorted(maps.Keys(names)), help)
		}
	}
	for name, list := range byVariable {
		for _, s := range list[1:] {
			if s.Flag != list[0].Flag && variableMeanings[name] == "" {
				t.Errorf("%s stands for %v and for %v", name, list[0], s)
			}
		}
	}
	// A variable of one flag's name must not reach a program whose flag of that name means another file.
	for _, s := range settings {
		if s.Flag == "model" && s.Program != "tandem" && s.Program != "worker-target" &&
			slices.Contains(s.Variables, "TANDEM_MODEL") {
			t.Errorf("TANDEM_MODEL is the target's file, but %v takes it", s)
		}
	}
	// Earlier names and aliases are not names of something else.
	for _, s := range settings {
		for _, name := range slices.Concat(s.Earlier, s.Aliases) {
			for _, other := range byFlag[name] {
				if other.Program == s.Program && other.Command == s.Command {
					t.Errorf("%q, another name of %v, is a flag there itself", name, s)
				}
			}
		}
	}
	for name := range meanings {
		if len(byFlag[name]) < 2 {
			t.Errorf("meanings holds %q, which only %v has", name, byFlag[name])
		}
	}
	for name := range variableMeanings {
		if len(byVariable[name]) < 2 {
			t.Errorf("variableMeanings holds %s, which only %v has", name, byVariable[name])
		}
	}
}

// TestVariablesAreListed holds the lists that misspelt variables, and those that tandem serve does not heed, are
// compared with to what the programs take.
func TestVariablesAreListed(t *testing.T) {
	root, settings := all(t)
	names, workers := map[string]bool{}, map[string]bool{}
	for _, s := range settings {
		for _, v := range s.Variables {
			names[v] = true
			if strings.HasPrefix(s.Program, "worker-") {
				workers[v] = true
			}
		}
	}
	path := filepath.Join(root, "services", "config", "variables.go")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	have := string(data)
	want := replaceList(t, have, "programVariables", names)
	want = replaceList(t, want, "workerVariables", workers)
	if have == want {
		return
	}
	if !*update {
		t.Fatal("the lists in services/config/variables.go are not what the programs take; run: go test " +
			"./tests/settings -update")
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// replaceList replaces a list of texts in a Go file.
func replaceList(t *testing.T, file, list string, names map[string]bool) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "var %s = []string{\n", list)
	for _, name := range slices.Sorted(maps.Keys(names)) { // one a line: changes of several people merge
		fmt.Fprintf(&b, "\t%q,\n", name)
	}
	b.WriteString("}\n")
	have := regexp.MustCompile(`(?s)var ` + list + ` = \[\]string\{.*?\}\n`).FindString(file)
	if have == "" {
		t.Fatalf("there is no list %s", list)
	}
	return strings.Replace(file, have, b.String(), 1)
}

// ofClients are variables that no server takes: which gateway, hub or model store is asked with which key, and how
// tandem run answers, are the same for all calls of a user. What is meant for one call has a flag only (env:"-").
var ofClients = []string{
	"TANDEM_CA_FILE", "TANDEM_HISTORY_FILE", "TANDEM_HUB", "TANDEM_HUB_TOKEN", "TANDEM_INSECURE", "TANDEM_MAX_TOKENS",
	"TANDEM_NO_MARKDOWN", "TANDEM_QUIET", "TANDEM_SEED", "TANDEM_SERVER", "TANDEM_SPECULATION", "TANDEM_SYSTEM",
	"TANDEM_TEMPERATURE", "TANDEM_THINKING", "TANDEM_TOP_K", "TANDEM_TOP_P",
}

// TestOneCallHasNoVariables: a variable stands for a setting of a server, or is one of a few of clients.
func TestOneCallHasNoVariables(t *testing.T) {
	_, settings := all(t)
	servers, found := map[string]bool{}, map[string]bool{}
	isServer := func(s setting) bool { return s.Program != "tandem" || s.Command == "serve" || s.Command == "gateway" }
	for _, s := range settings {
		for _, v := range s.Variables {
			servers[v] = servers[v] || isServer(s)
		}
	}
	for _, s := range settings {
		for _, v := range s.Variables {
			found[v] = true
			if !servers[v] && !slices.Contains(ofClients, v) {
				t.Errorf(`%s stands for %v, which is no setting: give its flag the tag env:"-"`, v, s)
			}
		}
	}
	for _, v := range ofClients {
		if !found[v] || servers[v] {
			t.Errorf("ofClients holds %s: found %v, of a server %v", v, found[v], servers[v])
		}
	}
}

// containerVariables are variables of compose.yaml and of the launchers that are no program's.
var containerVariables = regexp.MustCompile(`^TANDEM_(BIND|(GRAFANA|PROMETHEUS)_PORT|(TARGET|DRAFT|PREFILL)_FILE|MODELS_DIR|` +
	`(CUDA|HIP)_(DEVICE|ARCHS)|(VIDEO|RENDER)_GID|(GO|BASE)_IMAGE|(CUDA|ROCM)_(BUILD|BASE)|VERSION|(GATEWAY_)?MEMORY_LIMIT|CONTEXT|CLIENT_HOME)$`)

// TestComposeAndLaunchersUseTheSameNames looks at every variable of compose.yaml and of the launchers: it is a setting
// of theirs alone, or it means what it means to the programs.
func TestComposeAndLaunchersUseTheSameNames(t *testing.T) {
	root, settings := all(t)
	flagOf := map[string][]string{}
	for _, s := range settings {
		for _, v := range s.Variables {
			flagOf[v] = append(flagOf[v], s.Flag)
		}
	}
	// The port that the gateway has outside its container; the model's name and the gateway's address and key for clients.
	same := map[string]string{"TANDEM_PORT": "port", "TANDEM_MODEL_NAME": "model-name", "TANDEM_SERVER": "server",
		"TANDEM_API_KEY": "api-key"}
	earlier := []string{"TANDEM_URL"} // launchers note that it has another name now
	files, err := filepath.Glob(filepath.Join(root, "deploy", "clients", "*", "launch"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d launchers, %v", len(files), err)
	}
	files = append(files, filepath.Join(root, "compose.yaml"), filepath.Join(root, "deploy", "clients", "lib.sh"))
	use := regexp.MustCompile(`\$\{?(TANDEM_[A-Z_]+)`)
	passed := regexp.MustCompile(`(TANDEM_[A-Z_]+): \$\{(TANDEM_[A-Z_]+)|--([a-z-]+)=\$\{(TANDEM_[A-Z_]+)`)
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(path, root+"/")
		for _, m := range passed.FindAllStringSubmatch(string(data), -1) {
			// the gateway's certificate is no other's
			if m[1] != "" && m[1] != m[2] && flagOf[m[2]] != nil && m[1] != "TANDEM_INSECURE" {
				t.Errorf("%s: %s is passed on as %s", name, m[2], m[1])
			}
			if m[3] != "" && flagOf[m[4]] != nil && !slices.Contains(flagOf[m[4]], m[3]) {
				t.Errorf("%s: %s, a variable of --%s, is given to --%s", name, m[4], flagOf[m[4]][0], m[3])
			}
		}
		for _, m := range use.FindAllStringSubmatch(string(data), -1) {
			v := m[1]
			switch {
			case containerVariables.MatchString(v) && flagOf[v] != nil:
				t.Errorf("%s: %s is a variable of its own, and of --%s", name, v, flagOf[v][0])
			case containerVariables.MatchString(v), slices.Contains(earlier, v):
			case flagOf[v] == nil:
				t.Errorf("%s: %s is no setting", name, v)
			case same[v] != "" && !slices.Contains(flagOf[v], same[v]):
				t.Errorf("%s: %s is no variable of --%s", name, v, same[v])
			}
		}
	}
}

// environments are the lists of compose.yaml: which program gets which variables. A container fixes the other
// settings itself.
var environments = []struct {
	list, program, command string
	fixed                  []string
}{
	{"gateway", "tandem", "gateway",
		[]string{"config", "host", "port", "grpc-port", "registry-listen", "model", "prefill-drafter", "seal-key-file",
			"api-key-file", "tls-cert", "tls-key"}},
	// Which worker is whose stage is said by the services, who reach nobody else. Their models are mounted.
	{"target", "worker-target", "serve", []string{"stage", "target-stages", "model-from"}},
	{"draft", "worker-draft", "serve", []string{"tables"}},
	{"prefill", "worker-prefill", "serve", nil},
}

// fixedForWorkers are settings of workers whose values belong to the container.
var fixedForWorkers = []string{"config", "gateway", "listen", "remote-listen", "advertise", "worker-id", "model",
	"device", "engine", "engine-lib", "cache-dir", "parent-pid", "supervise", "draft-address"}

var environmentList = regexp.MustCompile(`(?m)^x-(gateway|target|draft|prefill)-settings: &\w+-settings.*\n(?:  TANDEM_\w+:\n)*`)

// TestComposePassesEverySettingOn holds the lists in compose.yaml to the programs: each setting that a container does
// not fix is passed on where the environment has it.
func TestComposePassesEverySettingOn(t *testing.T) {
	root, settings := all(t)
	path := filepath.Join(root, "compose.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text, wrong := string(data), false
	for _, e := range environments {
		fixed := e.fixed
		if e.list != "gateway" {
			fixed = append(slices.Clone(fixed), fixedForWorkers...)
		}
		names := map[string]bool{}
		for _, s := range settings {
			if s.Program == e.program && s.Command == e.command && !slices.Contains(fixed, s.Flag) {
				for _, v := range s.Variables {
					names[v] = true
				}
			}
		}
		want := fmt.Sprintf("x-%s-settings: &%[1]s-settings\n", e.list)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			want += "  " + name + ":\n"
		}
		found := false
		text = environmentList.ReplaceAllStringFunc(text, func(have string) string {
			if !strings.HasPrefix(have, "x-"+e.list+"-") {
				return have
			}
			found, wrong = true, wrong || have != want
			return want
		})
		if !found || len(names) < 5 {
			t.Fatalf("compose.yaml has no list for the %s, or it would be short: %v", e.list, names)
		}
	}
	switch {
	case wrong && !*update:
		t.Error("compose.yaml does not pass on what the programs take; run: go test ./tests/settings -update")
	case wrong:
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
