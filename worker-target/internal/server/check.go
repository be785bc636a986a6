package server

import (
	"strings"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/bounds"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/sampling"
	"github.com/tandem-inference/tandem/worker-target/internal/decode"
	"github.com/tandem-inference/tandem/worker-target/internal/decode/reuse"
)

// mostPriority is the highest priority of a request.
const mostPriority = 9

// check turns a message into a request that can be run on the engine, or says which field cannot work.
func check(m *tandemv1.DecodeRequest, info engine.Info) (*decode.Request, error) {
	n := len(m.PromptTokens) + len(m.CommittedTokens)
	switch {
	case len(m.PromptTokens) == 0:
		return nil, rpcerr.InvalidArgument("prompt_tokens", "is empty")
	case n > info.MaxContext:
		return nil, rpcerr.ContextLength.With("prompt_tokens: %d tokens do not fit into the context of %d", n, info.MaxContext)
	case m.MaxTokens < 0:
		return nil, rpcerr.InvalidArgument("max_tokens", "must be >= 0, got %d", m.MaxTokens)
	case m.TopLogprobs < -1 || int(m.TopLogprobs) > info.MaxTopK:
		return nil, rpcerr.InvalidArgument("top_logprobs", "must be in -1..%d, got %d", info.MaxTopK, m.TopLogprobs)
	case m.Priority < 0 || m.Priority > mostPriority:
		return nil, rpcerr.InvalidArgument("priority", "must be in 0..%d, got %d", mostPriority, m.Priority)
	case m.PromptLogprobs && len(m.CommittedTokens) > 0:
		return nil, rpcerr.InvalidArgument("prompt_logprobs", "cannot be repeated for a request that already has output")
	}
	if err := checkCache(m.GetCache(), len(m.PromptTokens)); err != nil {
		return nil, err
	}
	if m.Peer != nil {
		if err := bounds.Check(m.Peer); err != nil {
			return nil, rpcerr.InvalidArgument("peer", "%v", err)
		}
	}
	for field, tokens := range map[string][]int32{"prompt_tokens": m.PromptTokens, "committed_tokens": m.CommittedTokens,
		"stop_tokens": m.StopTokens} {
		if err := checkTokens(field, tokens, info.Vocab); err != nil {
			return nil, err
		}
	}
	if err := sampling.Check(m.Sampling, info.Vocab); err != nil {
		return nil, err
	}
	sampler := engine.SamplerOf(m.Sampling)
	sampler.Choice = m.Choice
	spec := m.GetSpeculation()
	switch {
	case spec.GetBudget() < 0 || int(spec.GetBudget()) >= max(info.MaxTreeRows, 1):
		return nil, rpcerr.InvalidArgument("speculation.budget", "must be in 0..%d, got %d", info.MaxTreeRows-1,
			spec.GetBudget())
	case spec.GetBlock() < 0 || spec.GetBlock() == 1:
		return nil, rpcerr.InvalidArgument("speculation.block", "must be 0 or at least 2, got %d", spec.GetBlock())
	}
	return &decode.Request{
		ID: m.RequestId, Prompt: m.PromptTokens, Committed: m.CommittedTokens, Sampler: sampler, Max: int(m.MaxTokens),
		Stop: m.StopTokens,
		Mode: spec.GetMode(), Budget: int(spec.GetBudget()), Block: int(spec.GetBlock()),
		TopLogprobs: int(m.TopLogprobs), PromptLogprobs: m.PromptLogprobs,
		Priority: int(m.Priority), Watch: m.Watch,
		Reuse: reuse.Request{Hints: m.GetCache().GetHints(), Off: m.GetCache().GetOff(), SaveOnly: m.PromptLogprobs},
	}, nil
}

// checkTokens checks that tokens are of the vocabulary.
func checkTokens(field string, tokens []int32, vocab int) error {
	for i, t := range tokens {
		if t < 0 || int(t) >= vocab {
			return rpcerr.InvalidArgument(field, "token %d at %d is outside the vocabulary of %d", t, i, vocab)
		}
	}
	return nil
}

// checkIsolation checks what states are kept apart by.
func checkIsolation(field, text string) error {
	switch {
	case len(text) > mostIsolation:
		return rpcerr.InvalidArgument(field, "has %d bytes, at most %d are allowed", len(text), mostIsolation)
	case strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return rpcerr.InvalidArgument(field, "must be printable ASCII without spaces")
	}
	return nil
}

const (
	// mostIsolation bounds what states are kept apart by, in bytes: a digest and room.
	mostIsolation = 128
	// mostHints bounds the positions that a request asks to be saved, each of which takes the memory of a state.
	mostHints = 16
)

// checkCache checks what a request of a prompt of so many tokens says about the prefix cache.
func checkCache(c *tandemv1.CacheUse, prompt int) error {
	if err := checkIsolation("cache.isolation", c.GetIsolation()); err != nil {
		return err
	}
	if len(c.GetHints()) > mostHints {
		return rpcerr.InvalidArgument("cache.hints", "has %d positions, at most %d are allowed", len(c.GetHints()), mostHints)
	}
	for i, h := range c.GetHints() {
		if h < 1 || int(h) > prompt {
			return rpcerr.InvalidArgument("cache.hints", "position %d at %d must be in 1..%d, the prompt's tokens", h, i, prompt)
		}
	}
	return nil
}
