// Package server is the draft worker's gRPC service.
//
// The engine is opened as soon as the target's tables are there: from a local file, from the cache, or from the first
// target that hands them over. One Speculate stream is one sequence: it holds a slot from the first message to its end.
//
// A stream's messages are read ahead by a goroutine, so that a question which is already out of date, because a newer
// message has come or its deadline has passed, costs no forward pass: it is answered at once with an empty proposal,
// which tells the target that the draft has caught up.
package server
