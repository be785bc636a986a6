// Command tandem-engine-scripted is an engine program for tests. Its output follows the rules in the file
// TANDEM_SCRIPT, with the shapes and the tokenizer of real model files and without arithmetic. No image contains it.
//
//	TANDEM_SCRIPT=rules.json tandem serve --demo --engine bin/tandem-engine-scripted
//
// README.md beside this file describes the rules; Rule and plan in native/plugin/internal/script read and follow them.
package main

import (
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"github.com/tandem-inference/tandem/native/plugin/internal/program"
	"github.com/tandem-inference/tandem/native/plugin/internal/script"
	"github.com/tandem-inference/tandem/services/engine"
)

// version is set by the linker.
var version = "dev"

type cli struct {
	Lib      string           `hidden:"" help:"Accepted as of any engine program and not used."`
	Script   string           `help:"Rules to follow, a JSON file." env:"TANDEM_SCRIPT" placeholder:"PATH"`
	Check    bool             `help:"Check the rules and exit."`
	LogLevel string           `help:"Least level of log lines: debug, info, warn, error." enum:"debug,info,warn,error" default:"info" env:"TANDEM_LOG_LEVEL"`
	Version  kong.VersionFlag `help:"Print the version and exit."`
}

func main() {
	c := &cli{}
	parser, err := kong.New(c,
		kong.Name("tandem-engine-scripted"),
		kong.Description("Plays the part of an inference engine in tests."),
		kong.Vars{"version": program.Version("tandem-engine-scripted", version)},
		kong.UsageOnError(),
	)
	if err != nil {
		panic(err) // the struct above is wrong
	}
	_, err = parser.Parse(os.Args[1:])
	parser.FatalIfErrorf(err)
	if err := c.run(); err != nil {
		program.Logger(os.Stderr, c.LogLevel).Error("engine program failed", "error", err.Error())
		os.Exit(1)
	}
}

func (c *cli) run() error {
	if c.Check {
		rules, err := script.Load(c.Script)
		if err != nil {
			return err
		}
		fmt.Printf("%d rules\n", len(rules))
		return nil
	}
	return program.Serve(program.Logger(os.Stderr, c.LogLevel), version, "try: tandem-engine-scripted --check",
		func() (engine.Opener, error) {
			return script.Opener{Rules: c.Script}, nil
		})
}
