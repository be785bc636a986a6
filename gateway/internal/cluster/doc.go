// Package cluster follows the workers that the registry reports, keeps a connection to each target and scorer, and
// gives requests a slot on one of them: by priority, then by arrival, on the worker that route.go chooses.
//
// Locks: Pool.mu is the only one; nothing is called under it that may block.
package cluster
