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

// Variables implements config.Variables: on a machine where one variable reaches several programs it means the same to
// all of them.
func (cli) Variables() map[string][]string {
	return map[string][]string{
		"model": {"DRAFT"}, "device": {"DRAFT_DEVICE", "DEVICE"}, "threads": {"DRAFT_THREADS", "THREADS"},
		"memory-cap":   {"DRAFT_MEMORY_CAP"},
		"cache-type-k": {"DRAFT_CACHE_TYPE"}, "cache-type-v": {"DRAFT_CACHE_TYPE"},
	}
}
