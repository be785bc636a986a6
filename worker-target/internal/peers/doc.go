// Package peers fetches states of prompts from the workers that hold them, and sends them to workers that ask.
//
// The gateway names the worker that holds a longer state (PeerHint). Client compares what fetching that is expected to
// take, by the measured rate of that worker, with the measured time of reading the tokens, and fetches where that is
// less. While parts arrive it compares again, and gives up what turns out to be slower. So a wrong guess costs a
// fraction of the time of reading.
//
// A state is sent as it lies on disk (package disk): the engine's state, then pages of keys and values, each part with
// the engine's own CRC-32C, then rows of features. The sender compares the token ids that it is asked for with its own,
// one by one, in the namespace of contract id and isolation; the receiver compares the ids in the state with its
// prompt, and the engine checks layout and checksums. Whatever does not fit is a miss: the prompt is read.
//
// A state that a peer reads is not pinned and may be evicted meanwhile. If the sender has requests of its own, it
// pauses after every part for as long as reading the part took.
package peers
