// worker-target serves a target model: it prefills prompts and decodes, with the help of drafts when there are any.
package main

import "github.com/tandem-inference/tandem/services/workernode"

func main() {
	workernode.Exit(&cli{}, "worker-target", "Serve a target model of a Tandem cluster.")
}

type cli struct {
	Serve  serveCmd             `cmd:"" default:"withargs" help:"Run the worker (the default)."`
	Health workernode.HealthCmd `cmd:"" help:"Ask a worker whether it serves; exit status 0 or 1."`
}

// Variables implements config.Variables: TANDEM_TARGET_DEVICE of tandem serve holds for this program, too.
func (cli) Variables() map[string][]string {
	return map[string][]string{"device": {"TARGET_DEVICE", "DEVICE"}}
}
