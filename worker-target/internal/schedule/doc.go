// Package schedule composes engine steps from the rounds and prompt pieces of several requests. Weights are then read
// once for all of them: where memory bandwidth is the limit, four requests cost little more than one, and no stream
// waits long while prompts are read.
//
// Requests are goroutines that call Step on an Engine, or on the view of it that For makes. The first of them leads: it
// composes a step of all waiting parts, runs it, hands out the results, and passes the lead on when its own step is
// done. A single request needs no other goroutine.
//
// # Contents of a step
//
// Rounds (plain rows, chains, trees) come first: the one that waits longest, and those that cost clearly less in its
// step than in one of their own, by measured costs. Pieces of prompts fill the step up. A piece is one committing
// group of prompt rows, or of more than one row; it may run in several steps, cut at multiples of 64 rows from its
// start (of 8 where prompts have the bits of decoding), each stated by the piece's kind. A step takes as many of its
// rows as keep every running stream within its longest gap between two tokens, in 99 of 100 steps; the whole piece,
// when no stream runs.
//
// A stream counts as running from its first token until it is freed, or has asked for no step in a second, so that a
// slow reader does not slow prompts down for good. A piece that found no room for as long as a stream may wait gets its
// smallest cut anyway. So neither starves the other.
//
// What a request had at a worker that was lost is read sooner, since its client waits amid its answer: before other
// prompts, and as many rows in a step as take one such gap. Running streams wait up to twice as long meanwhile.
//
// # Which piece
//
// The highest priority first, then replays. Among equals the key that was served least, by virtual time: start-time
// fair queueing (Goyal, Vin, Cheng, 1996) with rows as the unit of service. Among the requests of a key comes the one
// with the least left to read, minus a credit for its wait (request.go).
//
// # Engines in stages
//
// Where an engine is a line of stages, steps follow each other through it: the next one starts when the first stage has
// run the one before (line.go).
//
// # Exactness and errors
//
// A request gets the results that it would get alone, bit for bit: the rows of a group do not depend on the other
// groups of a step (engine.Group), and a piece's bits not on its cuts (docs/design.md, section 4). A step that the
// engine refuses changes nothing, so that its parts run alone then and only the one at fault fails. A piece that is
// refused for want of memory between two cuts has its first rows committed; passed again, it goes on with the others. A
// step that fails otherwise fails all of its parts: the engine is lost, or their sequences are broken. A request that
// is cancelled before its part runs is left out; a piece that is cancelled between two cuts leaves its sequence with
// the rows of the first ones committed and nothing pending.
package schedule
