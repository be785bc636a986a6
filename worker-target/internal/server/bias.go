package server

import (
	"maps"
	"math"
	"slices"

	"github.com/tandem-inference/tandem/services/engineplugin"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// bias writes the biases in the order of token ids, so that equal requests make equal calls.
func bias(m map[int32]float64, vocab int, s *engineplugin.Sampler) error {
	for _, token := range slices.Sorted(maps.Keys(m)) {
		value := m[token]
		if token < 0 || int(token) >= vocab {
			return rpcerr.InvalidArgument("sampling.logit_bias", "token %d is outside the vocabulary of %d", token, vocab)
		}
		if math.IsNaN(value) || math.IsInf(value, 0) {
			return rpcerr.InvalidArgument("sampling.logit_bias", "bias of token %d is %v", token, value)
		}
		s.BiasTokens = append(s.BiasTokens, token)
		s.BiasValues = append(s.BiasValues, float32(value))
	}
	return nil
}
