package enginefake

import (
	"math"
	"slices"

	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// choose applies the sampler to raw logits and returns a token, -1 when the mask allows none. history is everything up
// to and including the row's own token; position is where the chosen token will stand. logits is overwritten.
//
// Order: bias, repetition penalty, frequency and presence, mask, top-k, softmax at temperature, top-p, min-p, draw.
func choose(s *engine.Sampler, logits []float32, mask []uint32, history []int32, position int, w *work) int32 {
	for i, t := range s.BiasTokens {
		logits[t] += s.BiasValues[i]
	}
	penalise(s, logits, history, w)
	if mask != nil {
		for v := range logits {
			if mask[v/32]>>(v%32)&1 == 0 {
				logits[v] = float32(math.Inf(-1))
			}
		}
	}
	best := int32(0)
	for v := range logits {
		if logits[v] > logits[best] {
			best = int32(v)
		}
	}
	if math.IsInf(float64(logits[best]), -1) {
		return -1
	}
	if s.Temperature == 0 {
		return best
	}
	keep := w.candidates(s, logits, logits[best])
	sum := 0.0
	for _, p := range w.probs {
		sum += p
	}
	u := unit(mix(s.Seed)^mix(uint64(s.Choice)+1<<20), uint64(position-int(s.PromptTokens))) * sum
	for i, p := range w.probs {
		if u -= p; u < 0 {
			return keep[i]
		}
	}
	return keep[len(keep)-1]
}

// candidates returns the tokens that top_k, top_p and min_p leave, by falling logit, and puts their probabilities into
// w.probs. most is the largest logit.
func (w *work) candidates(s *engine.Sampler, logits []float32, most float32) (keep []int32) {
	w.order = w.order[:0]
	for v := range logits {
		w.order = append(w.order, int32(v))
	}
	slices.SortFunc(w.order, func(a, b int32) int {
		if logits[a] != logits[b] {
			if logits[a] > logits[b] {
				return -1
			}
			return 1
		}
		return int(a - b)
	})
	keep = w.order
	if s.TopK > 0 && int(s.TopK) < len(keep) {
		keep = keep[:s.TopK]
	}
	temperature := max(float64(s.Temperature), 0.001)
	w.probs = w.probs[:0]
	sum := 0.0
	for _, v := range keep {
		p := math.Exp((float64(logits[v]) - float64(most)) / temperature)
		w.probs = append(w.probs, p)
		sum += p
	}
	for i := range w.probs {
		w.probs[i] /= sum
	}
	if s.TopP < 1 {
		sum = 0
		for i, p := range w.probs {
			if sum += p; sum >= float64(s.TopP) {
				keep, w.probs = keep[:i+1], w.probs[:i+1]
				break
			}
		}
	}
	if s.MinP > 0 {
		limit := float64(s.MinP) * w.probs[0]
		for i, p := range w.probs {
			if p < limit {
				keep, w.probs = keep[:i], w.probs[:i]
				break
			}
		}
	}
	return keep
}

func penalise(s *engine.Sampler, logits []float32, history []int32, w *work) {
	if s.RepetitionPenalty == 1 && s.FrequencyPenalty == 0 && s.PresencePenalty == 0 {
		return
	}
	window := history[max(0, len(history)-int(s.PenaltyWindow)):]
	if len(w.counts) != len(logits) {
		w.counts = make([]int32, len(logits))
	}
	clear(w.counts)
	for _, t := range window {
		w.counts[t]++
	}
	for v, n := range w.counts {
		if n == 0 {
			continue
		}
		if logits[v] > 0 {
			logits[v] /= s.RepetitionPenalty
		} else {
			logits[v] *= s.RepetitionPenalty
		}
		logits[v] -= s.FrequencyPenalty*float32(n) + s.PresencePenalty
	}
}

// checkSampler refuses what no sampler can do, naming the field.
func checkSampler(s *engine.Sampler, vocab int) error {
	finite := func(f float32) bool { return !math.IsNaN(float64(f)) && !math.IsInf(float64(f), 0) }
	switch {
	case !finite(s.Temperature) || s.Temperature < 0:
		return rpcerr.InvalidArgument("temperature", "must be >= 0, got %v", s.Temperature)
	case !(s.TopP > 0 && s.TopP <= 1):
		return rpcerr.InvalidArgument("top_p", "must be in (0, 1], got %v", s.TopP)
	case !(s.MinP >= 0 && s.MinP <= 1):
		return rpcerr.InvalidArgument("min_p", "must be in [0, 1], got %v", s.MinP)
	case !finite(s.RepetitionPenalty) || s.RepetitionPenalty <= 0:
		return rpcerr.InvalidArgument("repetition_penalty", "must be > 0, got %v", s.RepetitionPenalty)
	case !finite(s.FrequencyPenalty):
		return rpcerr.InvalidArgument("frequency_penalty", "must be finite")
	case !finite(s.PresencePenalty):
		return rpcerr.InvalidArgument("presence_penalty", "must be finite")
	case s.PenaltyWindow < 0:
		return rpcerr.InvalidArgument("penalty_window", "must be >= 0, got %d", s.PenaltyWindow)
	case s.PromptTokens < 0:
		return rpcerr.InvalidArgument("prompt_tokens", "must be >= 0, got %d", s.PromptTokens)
	case len(s.BiasTokens) != len(s.BiasValues):
		return rpcerr.InvalidArgument("bias_values", "has %d values for %d tokens", len(s.BiasValues), len(s.BiasTokens))
	}
	for i, t := range s.BiasTokens {
		if t < 0 || int(t) >= vocab {
			return rpcerr.InvalidArgument("bias_tokens", "token %d at %d is outside the vocabulary of %d", t, i, vocab)
		}
		if math.IsNaN(float64(s.BiasValues[i])) {
			return rpcerr.InvalidArgument("bias_values", "value at %d is not a number", i)
		}
	}
	return nil
}
