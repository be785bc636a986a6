// Package workernode holds the common part of all worker programs: command-line flags, the engine that is kept alive,
// the gRPC server with health and reflection, registration at the gateway, and the end of the process.
//
// Life of a worker: open the engine → listen → register → serve; on SIGTERM or when the gateway's lease says so stop
// taking work, finish what runs, and exit 0; a second signal, or the death of the parent process when one was named,
// ends it at once. The engine process may die at any time: calls in progress fail with UNAVAILABLE, the Keeper opens it
// again, and the worker reports "starting" meanwhile.
package workernode
