package config

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Variables is implemented by a command line whose flags do not all take the variable TANDEM_<FLAG>: the model of
// worker-draft is what TANDEM_DRAFT names everywhere else. The map goes from a flag's name to its variables without the
// prefix, strongest first; an empty list means that the flag has none.
type Variables interface {
	Variables() map[string][]string
}

// Absent is implemented by a command line that explains flags which it does not have: those of other programs or of
// other versions that people try. The map goes from a flag's name to the explanation.
type Absent interface {
	Absent() map[string]string
}

// absent returns what cli says about a flag that it does not have, or "".
func absent(cli any, flag string) string {
	if a, ok := cli.(Absent); ok {
		return a.Absent()[flag]
	}
	return ""
}

var unknownFlag = regexp.MustCompile(`^unknown flag --([a-z0-9-]+)`)

// explain adds to kong's message about an unknown flag what cli says about it.
func explain(cli any, err error) string {
	text := err.Error()
	if m := unknownFlag.FindStringSubmatch(text); m != nil {
		if why := absent(cli, m[1]); why != "" {
			return m[0] + ": " + why
		}
	}
	return text
}

// earlierNames are the names that a flag had before, from its tag was:"…". They are still accepted, with a note.
func earlierNames(flag *kong.Flag) []string {
	var names []string
	for _, list := range flag.Tag.GetAll("was") {
		names = append(names, strings.Split(list, ",")...)
	}
	return names
}

// allFlags lists the flags of a program and of all its commands, each once.
func allFlags(app *kong.Application) []*kong.Flag {
	var flags []*kong.Flag
	var walk func(*kong.Node)
	walk = func(n *kong.Node) {
		for _, flag := range n.Flags {
			if !slices.Contains(flags, flag) {
				flags = append(flags, flag)
			}
		}
		for _, child := range n.Children {
			walk(child)
		}
	}
	walk(app.Node)
	return flags
}

// prepareFlags gives flags the variables that cli names for them, and the names that they had before.
func prepareFlags(cli any) kong.Option {
	return kong.PostBuild(func(k *kong.Kong) error {
		var own map[string][]string
		if v, ok := cli.(Variables); ok {
			own = v.Variables()
		}
		for _, flag := range allFlags(k.Model) {
			if names, ok := own[flag.Name]; ok {
				flag.Envs = nil
				for _, name := range names {
					flag.Envs = append(flag.Envs, EnvPrefix+"_"+name)
				}
			}
			// An empty variable is one that is not set: files of variables and compose.yaml have no other way to say so.
			flag.Envs = slices.DeleteFunc(slices.Clone(flag.Envs), func(name string) bool {
				value, set := os.LookupEnv(name)
				return set && value == ""
			})
			flag.Value.Tag.Envs = flag.Envs
			flag.Aliases = append(flag.Aliases, earlierNames(flag)...)
		}
		return nil
	})
}

// noteEarlierNames tells which flags of a command line have another name now.
func noteEarlierNames(name string, args []string, flags []*kong.Flag, w io.Writer) {
	now := map[string]string{}
	for _, flag := range flags {
		for _, old := range earlierNames(flag) {
			now[old] = flag.Name
		}
	}
	for _, arg := range args {
		if arg == "--" {
			return
		}
		flag, isFlag := strings.CutPrefix(arg, "--")
		if old, _, _ := strings.Cut(flag, "="); isFlag && now[old] != "" {
			fmt.Fprintf(w, "%s: --%s is called --%s now; the old name goes with the next version\n", name, old, now[old])
		}
	}
}

// noteVariables names every variable TANDEM_… that is no setting of any program. An empty variable counts as unset.
func noteVariables(name string, environ []string, flags []*kong.Flag, w io.Writer) {
	known := map[string]bool{}
	for _, v := range programVariables {
		known[v] = true
	}
	for _, v := range otherVariables {
		known[v] = true
	}
	now := map[string]string{}
	for old, current := range renamedVariables {
		now[old] = current
	}
	for _, flag := range flags {
		for _, old := range earlierNames(flag) {
			if len(flag.Envs) > 0 {
				now[variable(old)] = flag.Envs[0]
			}
		}
	}
	var unknown []string
	for _, entry := range environ {
		v, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(v, EnvPrefix+"_") || known[v] || value == "" ||
			slices.ContainsFunc(privatePrefixes, func(p string) bool { return strings.HasPrefix(v, p) }) {
			continue
		}
		unknown = append(unknown, v)
	}
	slices.Sort(unknown)
	for _, v := range unknown {
		if now[v] != "" {
			fmt.Fprintf(w, "%s: warning: the variable %s has no effect, it is called %s now\n", name, v, now[v])
			continue
		}
		fmt.Fprintf(w, "%s: warning: the variable %s has no effect, no setting is called so%s\n", name, v, suggest(v, known))
	}
}

// variable is the environment variable of a flag of this name.
func variable(flag string) string {
	return EnvPrefix + "_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// FlagOf is the flag, without dashes, that an environment variable stands for by its name.
func FlagOf(variable string) string {
	return strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(variable, EnvPrefix+"_"), "_", "-"))
}

// OfWorkers reports whether a variable stands for a flag of a worker program.
func OfWorkers(variable string) bool { return slices.Contains(workerVariables, variable) }

// OfEngines reports whether a variable is for engine programs, and stands for no flag.
func OfEngines(variable string) bool {
	return slices.ContainsFunc(enginePrefixes, func(p string) bool { return strings.HasPrefix(variable, p) })
}

// Setting describes one flag of a program, as --list-settings prints it.
type Setting struct {
	// Command is the sub-command, "" for flags of the program itself.
	Command   string   `json:"command,omitempty"`
	Flag      string   `json:"flag"`
	Aliases   []string `json:"aliases,omitempty"`
	Earlier   []string `json:"earlier,omitempty"`
	Variables []string `json:"variables,omitempty"`
	Default   string   `json:"default,omitempty"`
	Help      string   `json:"help"`
	Hidden    bool     `json:"hidden,omitempty"`
}

// versionFlag prints the version instead of running a program.
type versionFlag bool

// BeforeReset prints the version and ends the program, like --help.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	fmt.Fprintln(app.Stdout, VersionLine(app.Model.Name))
	app.Exit(ExitOK)
	return nil
}

// VersionLine is what --version of a program prints.
func VersionLine(program string) string {
	return fmt.Sprintf("%s %s %s %s/%s", program, Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// Verifier is implemented by commands that can check more than single values before they run: files, and what belongs
// together. --verify-config asks them.
type Verifier interface {
	Verify() error
}

// verify asks the chosen command.
func verify(ctx *kong.Context) error {
	for node := ctx.Selected(); node != nil; node = node.Parent {
		if node.Target.CanAddr() {
			if v, ok := node.Target.Addr().Interface().(Verifier); ok {
				return v.Verify()
			}
		}
	}
	return nil
}

// listFlag prints all settings of a program instead of running it.
type listFlag bool

// BeforeReset prints the list and ends the program, like --help.
func (listFlag) BeforeReset(app *kong.Kong) error {
	var settings []Setting
	var walk func(n *kong.Node, command string)
	walk = func(n *kong.Node, command string) {
		for _, flag := range n.Flags {
			if slices.Contains(ownFlags, flag.Name) && flag.Name != "config" {
				continue
			}
			earlier := earlierNames(flag)
			settings = append(settings, Setting{
				Command: command, Flag: flag.Name, Earlier: earlier, Variables: flag.Envs, Default: flag.Default,
				Help: flag.Help, Hidden: flag.Hidden,
				Aliases: slices.DeleteFunc(slices.Clone(flag.Aliases), func(a string) bool { return slices.Contains(earlier, a) }),
			})
		}
		for _, child := range n.Children {
			walk(child, strings.TrimSpace(command+" "+child.Name))
		}
	}
	walk(app.Model.Node, "")
	enc := json.NewEncoder(app.Stdout)
	enc.SetIndent("", " ")
	if err := enc.Encode(settings); err != nil {
		return err
	}
	app.Exit(ExitOK)
	return nil
}

// spread moves flags before the positional arguments of a command that takes any number of them, so that "run MODEL
// --max-tokens 3 hello there" is read like "run --max-tokens 3 MODEL hello there": kong takes a list of arguments only
// in one piece. What follows "--" is no flag.
func spread(app *kong.Application, args []string) []string {
	node := app.Node
	for i, arg := range args {
		if strings.HasPrefix(arg, "-") {
			continue
		}
		next := slices.IndexFunc(node.Children, func(n *kong.Node) bool { return n.Name == arg })
		if next >= 0 {
			node = node.Children[next]
			if len(node.Children) > 0 {
				continue
			}
		}
		if len(node.Positional) == 0 || !node.Positional[len(node.Positional)-1].IsCumulative() {
			return args
		}
		flags, rest := split(node, args[i+1:])
		return slices.Concat(args[:i+1], flags, rest)
	}
	return args
}

// split parts flags, with their values, from positional arguments.
func split(node *kong.Node, args []string) (flags, rest []string) {
	takesValue := map[string]bool{}
	for _, group := range node.AllFlags(false) {
		for _, flag := range group {
			for _, name := range append([]string{flag.Name}, flag.Aliases...) {
				takesValue["--"+name] = !flag.IsBool() && !flag.IsCounter()
			}
			if flag.Short != 0 {
				takesValue["-"+string(flag.Short)] = !flag.IsBool() && !flag.IsCounter()
			}
		}
	}
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "--":
			return append(flags, "--"), slices.Concat(rest, args[i+1:])
		case arg == "-" || !strings.HasPrefix(arg, "-"):
			rest = append(rest, arg)
		case takesValue[arg] && i+1 < len(args):
			flags = append(flags, arg, args[i+1])
			i++
		default:
			flags = append(flags, arg)
		}
	}
	return flags, rest
}

// environ is os.Environ, apart for tests.
var environ = os.Environ
