// Package modelcopy hands model files, or the tensors of a stage, from worker to worker, never through the gateway.
//
// A part is a file in blocks (services/gguf Part). The sender lists the SHA-256 of every block. The receiver asks for
// blocks of several peers at a time, compares each with its digest and writes it where it belongs, in a file beside the
// one that is to be. What that file holds is the progress: after a restart the receiver hashes it, and asks for the
// blocks that are missing or differ. The whole must have the digest that head and stage compare.
package modelcopy
