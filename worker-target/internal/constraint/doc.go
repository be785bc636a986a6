// Package constraint limits what a decode may choose: how long a model may reason, what it may write afterwards.
//
// A Constraint is made per request. Its States are values: the state of every node of a draft tree is computed from
// that of its parent, so that each row is masked by its own path and speculation stays exact. Content is limited by
// masks, which the engine's sampler applies. Reasoning is limited by replacing a sample: the row at which reasoning
// must end samples as always, and Resolve returns the token that follows from the sample. So a marker that the model
// itself chooses at that position still counts as the model's.
//
// The steps are those of docs/spec/http-api.md §8.4.
package constraint
