// Package drafts is a target's side of the speculation protocol: it finds and attaches drafts, and keeps one stream per
// sequence to one of them.
//
// A Manager attaches every draft it is told of (from the lease or the command line): it compares shapes and tokenizers,
// hands over embedding and head when the draft lacks them, and fetches the draft's projection so that features travel
// fused, one fifth of the bytes. Features are laid out for one draft model at a time: the first that attaches decides,
// others are used when they have the same model and refused, with a reason, when not.
//
// A Link serves one request. The decode loop only appends features to a ring and asks; a goroutine of the link sends
// and another receives, so that a slow, dead or absent draft can never hold the loop up: the loop waits for a proposal
// until its own deadline and decodes plainly without one. When the stream breaks the link attaches again in the
// background, to the same or another draft, gives it the features of the newest positions under a new epoch, and
// speculation resumes. The link of a request that starts without its draft opens no stream before the first question:
// one that ends sooner costs no draft a slot, and none has read its prompt for nothing.
//
// Locks: Manager.mu before peer.mu; Link.mu and Ring.mu are leaves and never held while calling out.
package drafts
