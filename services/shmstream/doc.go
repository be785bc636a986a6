// Package shmstream carries the messages of gRPC streams through shared memory when both ends are on one host.
//
// A hop through gRPC passes three goroutines and a socket on each side, and where processors are few or sleepy every
// one of them waits to be woken. A hop through here is a copy into a ring and one futex call. What is sent stays the
// same: the bytes that the stream's codec would put on the wire.
//
// The two interceptors are all there is to use; methods that are not named, streams that Stay, and peers that know
// nothing of this package or cannot see the memory (another host, container or user), stay with gRPC. Interceptors
// chained before them see the stream's beginning and end, not its messages.
//
// # How a stream moves
//
// The client makes a sealed memory file, names it in the stream's metadata (its process and descriptor, with a random
// number that stands in it) and sends its first messages by gRPC. The server that can map the file says so in its
// header, and sends through memory from then on. The client that reads this half-closes the gRPC stream and goes on
// through memory too: the server turns to it when it has read the gRPC stream to that end, so order is kept. The gRPC
// stream stays open to carry cancellation, the death of a peer and the final status.
package shmstream
