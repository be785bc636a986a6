package main

import (
	"os"

	"github.com/tandem-inference/tandem/native/plugin/internal/native"
	"github.com/tandem-inference/tandem/native/plugin/internal/program"
	"github.com/tandem-inference/tandem/services/engine"
)

type serveCmd struct{}

// Run serves until the host ends us.
func (*serveCmd) Run(c *cli) error {
	log := program.Logger(os.Stderr, c.LogLevel)
	return program.Serve(log, version, "try: tandem-engine info", func() (engine.Opener, error) {
		if c.Lib == "" {
			return opener{cli: c, log: nativeLog(log)}, nil
		}
		return native.Load(c.Lib, nativeLog(log))
	})
}
