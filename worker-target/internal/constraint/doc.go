// Package constraint limits what a decode may choose: how long a model may reason, what it may write afterwards.
//
// A Constraint is made per request. Its States are values: the state of every node of a draft tree is computed from
// that of its parent, so that each row is masked by its own path and speculation stays exact. Two means are used.
// Content is limited by masks, which the engine's sampler applies. Reasoning is limited by overruling: the row at which
// reasoning has to end samples as always, and Resolve says which token follows from the sample. So a marker that the
// model chooses by itself at that very place still counts as its own.
//
// The steps are those of docs/spec/http-api.md §8.4.
package constraint
