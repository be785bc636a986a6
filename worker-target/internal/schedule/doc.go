// Package schedule makes one engine step of the steps that several requests want at the same time. Weights are read once for
// all of them, so that where memory is the limit four requests cost little more than one.
//
// What a request gets is what it would get alone, bit for bit: the rows of a group do not depend on the other groups of
// a step (engine.Group). A step that the engine refuses changes nothing, so that its parts run alone then and
// only the one at fault fails.
package schedule
