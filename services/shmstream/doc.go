// Package shmstream carries the messages of gRPC streams through shared memory when both ends are on one host.
//
// A hop through gRPC passes three goroutines and a socket on each side, and each of them may have to wait until a
// processor wakes up and runs it. A hop through this package is a copy into a ring and one futex call. The bytes are
// those that the stream's codec would put on the wire.
//
// The two interceptors are the whole interface. Methods that are not named, streams that Stay, and peers that lack this
// package or cannot see the memory (another host, container or user) stay with gRPC. Interceptors chained before them
// see the stream's beginning and end, not its messages.
//
// # How a stream moves
//
// The client makes a sealed memory file, names it in the stream's metadata (its process and descriptor, with a random
// number that stands in it) and sends its first messages by gRPC. The server that can map the file says so in its
// header, and sends through memory from then on. The client that reads this half-closes the gRPC stream and goes on
// through memory too: the server turns to it when it has read the gRPC stream to that end, so order is kept. The gRPC
// stream stays open to carry cancellation, the death of a peer and the final status.
package shmstream
