// Package generate runs requests on the cluster: it checks lengths, waits for slots, streams tokens through the
// emitter, moves generations of lost workers to others token-exactly, and counts. HTTP and gRPC share it.
package generate
