// Package batch makes one engine step of the steps that several requests want at the same time. Weights are read once for
// all of them, so that where memory is the limit four requests cost little more than one.
//
// What a request gets is what it would get alone, bit for bit: an engine's rows do not depend on what else is in a step of up
// to MaxTreeRows rows (engineplugin, "batch invariance"), and no more are put together.
package batch
