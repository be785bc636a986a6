// Command tandem-engine runs one native engine in a process of its own. Workers start it through go-plugin; it loads
// libtandem_<backend>.so without cgo, so that one program serves all vendors.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/alecthomas/kong"
	"github.com/hashicorp/go-hclog"

	"github.com/tandem-inference/tandem/native/plugin/internal/native"
	"github.com/tandem-inference/tandem/native/plugin/internal/program"
	"github.com/tandem-inference/tandem/services/device"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// version is set by the linker.
var version = "dev"

type cli struct {
	Lib      string           `help:"Path of libtandem_<backend>.so (default: the one of the device, beside this program)." env:"TANDEM_ENGINE_LIB" placeholder:"PATH"`
	LogLevel string           `help:"Least level of log lines: debug, info, warn, error." enum:"debug,info,warn,error" default:"info" env:"TANDEM_LOG_LEVEL"`
	Version  kong.VersionFlag `help:"Print the version and exit."`

	Serve serveCmd `cmd:"" default:"1" help:"Serve an engine to the worker that started this program."`
	Info  infoCmd  `cmd:"" help:"Check the library, open a model if one is named, and describe both."`
}

func main() {
	c := &cli{}
	parser, err := kong.New(c,
		kong.Name("tandem-engine"),
		kong.Description("Runs one native inference engine for a Tandem worker."),
		kong.Vars{"version": versionText()},
		kong.UsageOnError(),
	)
	if err != nil {
		panic(err) // the struct above is wrong
	}
	ctx, err := parser.Parse(os.Args[1:])
	parser.FatalIfErrorf(err)
	if err := ctx.Run(c); err != nil {
		// The host keeps the last lines of stderr, so this is what it shows.
		program.Logger(os.Stderr, c.LogLevel).Error("engine program failed", "error", err.Error())
		os.Exit(1)
	}
}

func versionText() string { return program.Version("tandem-engine", version) }

// library finds the native library that serves a device; "" is the cpu.
func (c *cli) library(name string) (string, error) {
	if c.Lib != "" {
		return c.Lib, nil
	}
	if name == "" {
		name = "cpu"
	}
	d, err := device.Parse(name)
	if err != nil {
		return "", fmt.Errorf("device: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	path, err := device.FindLibrary(filepath.Dir(self), d)
	if err != nil {
		return "", fmt.Errorf("%w; --lib and TANDEM_ENGINE_LIB name one elsewhere", err)
	}
	return path, nil
}

// opener loads the library of the device that an engine is opened on, when that is known.
type opener struct {
	cli *cli
	log native.LogFunc
}

// OpenTarget implements engine.Opener, as do the methods below.
func (o opener) OpenTarget(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Target, error) {
	lib, err := o.load(options.Device)
	if err != nil {
		return nil, err
	}
	return lib.OpenTarget(ctx, options, p)
}

// OpenDraft opens a draft.
func (o opener) OpenDraft(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Draft, error) {
	lib, err := o.load(options.Device)
	if err != nil {
		return nil, err
	}
	return lib.OpenDraft(ctx, options, p)
}

// OpenScorer opens a scorer.
func (o opener) OpenScorer(ctx context.Context, options engine.OpenOptions, p engine.Progress) (engine.Scorer, error) {
	lib, err := o.load(options.Device)
	if err != nil {
		return nil, err
	}
	return lib.OpenScorer(ctx, options, p)
}

// load loads the library of a device.
func (o opener) load(device string) (*native.Library, error) {
	path, err := o.cli.library(device)
	if err != nil {
		return nil, rpcerr.InvalidArgument("device", "%v", err)
	}
	lib, err := native.Load(path, o.log)
	if err != nil {
		return nil, rpcerr.InvalidArgument("device", "%v", err)
	}
	return lib, nil
}

// nativeLog passes lines of the library on.
func nativeLog(l hclog.Logger) func(int, string) {
	l = l.Named("native")
	return func(level int, text string) {
		switch {
		case level <= 0:
			l.Debug(text)
		case level == 1:
			l.Info(text)
		case level == 2:
			l.Warn(text)
		default:
			l.Error(text)
		}
	}
}
