package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	"github.com/alecthomas/kong"
	"github.com/tandem-inference/tandem/services/kvtype"
)

// EnvPrefix starts the name of every environment variable that stands for a flag.
const EnvPrefix = "TANDEM"

// Exit statuses of all programs.
const (
	ExitOK    = 0
	ExitError = 1
	ExitUsage = 2
)

// ownFlags are the flags of Flags and kong; they are neither dumped nor read from a file.
var ownFlags = []string{"config", "dump-config", "verify-config", "list-settings", "help", "version"}

// Flags are the settings about settings; embed them in a command.
type Flags struct {
	Config       FileFlag `help:"YAML file of settings, one \"flag: value\" a line. Flags and TANDEM_… variables win over it." placeholder:"FILE" type:"path"`
	DumpConfig   bool     `help:"Print the resolved settings as JSON, secrets masked, and exit." env:"-"`
	VerifyConfig bool     `help:"Check the settings and exit with status 0, or with 2 and the reasons." env:"-"`
}

// FileFlag is the path of a settings file; it is read while the command line is parsed.
type FileFlag string

// BeforeResolve reads the file, before kong asks for values that the command line lacks.
func (FileFlag) BeforeResolve(ctx *kong.Context, trace *kong.Path) error {
	path, _ := ctx.FlagValue(trace.Flag).(FileFlag)
	return addFile(ctx, string(path))
}

func addFile(ctx *kong.Context, path string) error {
	r, err := readFile(path)
	if err != nil {
		return err
	}
	r.cli = ctx.Model.Target.Addr().Interface()
	ctx.AddResolver(r)
	return nil
}

// envFile reads the file named by TANDEM_CONFIG, unless the command line names another.
type envFile struct{}

func (envFile) BeforeResolve(ctx *kong.Context) error {
	path := os.Getenv(EnvPrefix + "_CONFIG")
	if path == "" {
		return nil
	}
	hasFlag := false
	for _, flag := range ctx.Flags() {
		hasFlag = hasFlag || flag.Name == "config"
	}
	for _, step := range ctx.Path {
		if step.Flag != nil && step.Flag.Name == "config" {
			return nil
		}
	}
	if !hasFlag {
		return nil
	}
	return addFile(ctx, path)
}

// Streams are the outputs of a program.
type Streams struct {
	Out, Err io.Writer
}

// Result of Parse.
type Result struct {
	// Context runs the chosen command; nil when Done.
	Context *kong.Context
	// Done says that the program has nothing more to do: help or settings were printed, or the command line is wrong.
	Done bool
	// Exit is the status to end with when Done.
	Exit int
}

// exit carries a status out of kong's help and version hooks, which would end the process.
type exit int

// Parse reads the command line args into cli, a pointer to a kong struct. It never ends the process.
func Parse(cli any, name, description string, args []string, streams Streams, options ...kong.Option) (result Result) {
	defer func() {
		if r := recover(); r != nil {
			code, ok := r.(exit)
			if !ok {
				panic(r)
			}
			result = Result{Done: true, Exit: int(code)}
		}
	}()
	list := struct {
		Version      versionFlag `env:"-" help:"Print the version and exit."`
		ListSettings listFlag    `hidden:"" env:"-" help:"Print all settings of the program as JSON and exit."`
	}{}
	options = append([]kong.Option{
		kong.Embed(&list),
		kong.Name(name),
		kong.Description(description),
		kong.Vars(kvtype.Vars()),
		kong.DefaultEnvars(EnvPrefix),
		prepareFlags(cli),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
		kong.Writers(streams.Out, streams.Err),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.WithBeforeResolve(func(ctx *kong.Context) error { return envFile{}.BeforeResolve(ctx) }),
	}, options...)
	parser, err := kong.New(cli, options...)
	if err != nil {
		panic(fmt.Sprintf("config: struct of %s: %v", name, err)) // a broken struct tag, found by the first test
	}
	ctx, err := parser.Parse(spread(parser.Model, joinNegative(args)))
	if err != nil {
		fmt.Fprintf(streams.Err, "%s: %s\n", name, explain(cli, err))
		var parse *kong.ParseError
		if errors.As(err, &parse) && parse.Context != nil && parse.Context.Command() != "" {
			fmt.Fprintf(streams.Err, "Run \"%s --help\" for the flags.\n", commandLine(name, parse.Context))
		} else {
			fmt.Fprintf(streams.Err, "Run \"%s --help\" for the commands.\n", name)
		}
		return Result{Done: true, Exit: ExitUsage}
	}
	noteEarlierNames(name, args, ctx.Flags(), streams.Err)
	noteVariables(name, environ(), allFlags(parser.Model), streams.Err)
	switch {
	case flagSet(ctx, "dump-config"):
		if err := Dump(ctx, streams.Out); err != nil {
			fmt.Fprintf(streams.Err, "%s: %v\n", name, err)
			return Result{Done: true, Exit: ExitError}
		}
		return Result{Done: true}
	case flagSet(ctx, "verify-config"):
		if c, ok := selected(ctx).(Checker); ok {
			for _, w := range c.Check() {
				fmt.Fprintf(streams.Err, "%s: warning: %s\n", name, w)
			}
		}
		if err := verify(ctx); err != nil {
			fmt.Fprintf(streams.Err, "%s: %v\n", name, err)
			return Result{Done: true, Exit: ExitUsage}
		}
		fmt.Fprintln(streams.Out, "settings are valid")
		return Result{Done: true}
	}
	return Result{Context: ctx}
}

var (
	longFlag = regexp.MustCompile(`^--[a-z][a-z0-9-]*$`)
	negative = regexp.MustCompile(`^-\.?[0-9]`)
)

// joinNegative writes "--flag -1" as "--flag=-1": kong would take the number for a flag. No program has flags that
// are digits.
func joinNegative(args []string) []string {
	out := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return append(out, args[i:]...)
		}
		if i+1 < len(args) && longFlag.MatchString(args[i]) && negative.MatchString(args[i+1]) {
			out = append(out, args[i]+"="+args[i+1])
			i++
			continue
		}
		out = append(out, args[i])
	}
	return out
}

// selected is the command that was chosen, or the whole command line of a program that has none.
func selected(ctx *kong.Context) any {
	node := ctx.Selected()
	if node == nil {
		node = ctx.Model.Node
	}
	if !node.Target.CanAddr() {
		return nil
	}
	return node.Target.Addr().Interface()
}

// commandLine is the program's name with the chosen sub-commands, without their arguments.
func commandLine(name string, ctx *kong.Context) string {
	line := name
	for _, step := range ctx.Path {
		if step.Command != nil {
			line += " " + step.Command.Name
		}
	}
	return line
}

func flagSet(ctx *kong.Context, name string) bool {
	for _, flag := range ctx.Flags() {
		if flag.Name == name {
			set, _ := flag.Target.Interface().(bool)
			return set
		}
	}
	return false
}
