package auto

import "math/rand/v2"

// prefixLengths are the lengths, in tokens, of the prompt prefixes that have a prior.
var prefixLengths = [...]int{4, 8, 16, 32, 64}

const (
	mostPriors = 1024 // some 100 bytes each
	// priorMemory is the number of rounds over which a prior is averaged, priorWeight the weight, in tokens, of the
	// estimate without it: about one round, because requests with one prefix are alike. In a simulation of the
	// demonstration texts a weight of 24 costs functions 4 %.
	priorMemory, priorWeight = 40, 10
	// lateRounds is how many rounds a request with a prior against drafting decodes before it tries the draft, for each
	// plain round that a failed trial costs: 4 rounds on a card, 49 where two processors run both models. 8 instead of 10
	// costs the demonstration texts 0.6 % there; with 12 one disturbed start of 20 stays 5 % slower (TestDisturbedStart).
	// 32 rounds everywhere cost 2 % on a card.
	lateRounds = 10
)

// promptPrefix holds hashes of the first tokens of a prompt, one for each of prefixLengths that it reaches.
type promptPrefix struct {
	hashes [len(prefixLengths)]uint64
	n      int
}

// prior is the gain of drafts in requests whose prompts share a prefix, by the outcome of the draft's round before, in
// tokens of decoding without the draft. First rounds, and those that follow them without a break, are compared with the
// tokens of decoding without the draft in their time; later ones with the predicted tokens.
type prior struct {
	hash, used uint64
	drafts     [outcomes]gauge
}

// priors are those of the prefixes seen last. Guarded by Model.mu.
type priors struct {
	salt  uint64
	clock uint64
	index map[uint64]int
	all   []prior
}

func newPriors() priors { return priors{salt: rand.Uint64(), index: map[uint64]int{}} }

// open hashes the start of a prompt.
func (s *priors) open(prompt []int32) (o promptPrefix) {
	h := s.salt
	for i, token := range prompt {
		// One round of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014) a token.
		h = (h ^ uint64(uint32(token))) + 0x9e3779b97f4a7c15
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		h ^= h >> 31
		if i+1 == prefixLengths[o.n] {
			o.hashes[o.n] = h
			if o.n++; o.n == len(prefixLengths) {
				break
			}
		}
	}
	return o
}

// has reports whether rounds of requests with the prefix o were seen.
func (s *priors) has(o *promptPrefix, last outcome) bool {
	if o.n == 0 {
		return false
	}
	at, ok := s.index[o.hashes[0]]
	return ok && s.all[at].drafts[last].predicted > priorWeight
}

// mean is the gain of drafts in requests with the prefix o. Every prefix leans on the shorter one, the shortest on
// lean; rounds of a longer one do not count again in the weight of a shorter.
func (s *priors) mean(o *promptPrefix, last outcome, lean float64) float64 {
	var known [len(prefixLengths) + 1]gauge
	for i, hash := range o.hashes[:o.n] {
		if at, ok := s.index[hash]; ok {
			known[i] = s.all[at].drafts[last]
		}
	}
	for i, g := range known[:o.n] {
		if weight := g.predicted - known[i+1].predicted; weight > 0 {
			lean = (weight*g.accepted/g.predicted + lean*priorWeight) / (weight + priorWeight)
		}
	}
	return lean
}

// add counts a round, the first of some that count as one.
func (s *priors) add(o *promptPrefix, last outcome, predicted, accepted float64) {
	s.clock++
	for _, hash := range o.hashes[:o.n] {
		at, ok := s.index[hash]
		if !ok {
			at = s.place()
			s.all[at] = prior{hash: hash}
			s.index[hash] = at
		}
		p := &s.all[at]
		p.used = s.clock
		g := &p.drafts[last]
		g.fade(1 - 1.0/priorMemory)
		g.predicted += predicted
		g.accepted += accepted
	}
}

// more counts a round that belongs to the one added last.
func (s *priors) more(o *promptPrefix, last outcome, predicted, accepted float64) {
	for _, hash := range o.hashes[:o.n] {
		if at, ok := s.index[hash]; ok {
			g := &s.all[at].drafts[last]
			g.predicted += predicted
			g.accepted += accepted
		}
	}
}

// place returns the index for a new prior: the one used longest ago is replaced when there is no room.
func (s *priors) place() int {
	if len(s.all) < mostPriors {
		s.all = append(s.all, prior{})
		return len(s.all) - 1
	}
	oldest := 0
	for i := range s.all {
		if s.all[i].used < s.all[oldest].used {
			oldest = i
		}
	}
	delete(s.index, s.all[oldest].hash)
	return oldest
}
