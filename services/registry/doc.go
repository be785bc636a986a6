// Package registry keeps the list of workers of a cluster: workers dial in to the gateway (Client) and hold one stream
// open, the gateway (Server) leases them a place for as long as the stream lives and heartbeats arrive.
//
// The server also says which drafts a target may use: drafts that fit a target are shared out among the targets, and
// every change of that assignment reaches the target as a new Lease.
package registry

// ProtocolVersion is the version of the messages between gateway and workers. Unequal versions do not join.
const ProtocolVersion = 1

// States of a worker, as seen by the gateway.
const (
	// StateStarting: registered, not ready for work (model loading, engine restarting).
	StateStarting = "starting"
	// StateReady: takes work.
	StateReady = "ready"
	// StateDraining: finishes what it has, takes nothing new.
	StateDraining = "draining"
	// StateLost: its stream ended or its heartbeats stopped. Kept in the list for a while for people who look.
	StateLost = "lost"
)
