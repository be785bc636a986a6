// worker-draft proposes draft trees to targets.
package main

import "github.com/tandem-inference/tandem/services/workernode"

func main() {
	workernode.Exit(&cli{}, "worker-draft", "Propose draft tokens to the targets of a Tandem cluster.")
}

type cli struct {
	Serve  serveCmd             `cmd:"" default:"withargs" help:"Run the worker (the default)."`
	Health workernode.HealthCmd `cmd:"" help:"Ask a worker whether it serves; exit status 0 or 1."`
}
