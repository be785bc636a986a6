// Package server is the draft worker's gRPC service.
//
// The engine is opened as soon as the target's tables are there: from a local file, from the cache, or from the first
// target that hands them over. One Speculate stream is one sequence: it holds a slot from the first message to its end.
//
// A goroutine reads a stream's messages ahead. So a question that is already out of date, because a newer message has
// come or its deadline has passed, costs no forward pass. It is answered at once with an empty proposal, which tells
// the target that the draft has caught up.
package server
