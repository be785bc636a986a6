package auto

import "math/rand/v2"

// prefixLengths are the tokens from the start of a prompt by which requests count as alike.
var prefixLengths = [...]int{4, 8, 16, 32, 64}

const (
	mostPrefixes = 1024 // some 100 bytes each
	// prefixMemory is the number of rounds over which a prefix remembers, prefixWeight the tokens that what is assumed without it
	// counts: about one round, for requests that begin alike are alike. In a simulation of the demonstration texts a weight of 24
	// costs functions 4 %.
	prefixMemory, prefixWeight = 40, 10
	// A prefix that keeps requests from drafting forgets by restMemory of them, so that one in some dozens drafts again.
	restMemory = 32
	// lateGap is how many tokens such a request decodes before it tries the draft. Double that costs good drafts 10 % behind a prefix
	// that they share with bad ones.
	lateGap = 32
)

// opening are hashes of the first tokens of a prompt, one for each of prefixLengths that it reaches.
type opening struct {
	hashes [len(prefixLengths)]uint64
	n      int
}

// prefix is what drafts brought in requests whose prompts begin alike, by what the draft's round before was, in tokens of decoding
// without the draft: first rounds, and those that follow them without a break, against what their time was worth; later ones against
// what was promised.
type prefix struct {
	hash, used uint64
	drafts     [standings]gauge
}

// prefixes are those seen last. Guarded by Model.mu.
type prefixes struct {
	salt  uint64
	clock uint64
	index map[uint64]int
	all   []prefix
}

func newPrefixes() prefixes { return prefixes{salt: rand.Uint64(), index: map[uint64]int{}} }

// open hashes the start of a prompt.
func (s *prefixes) open(prompt []int32) (o opening) {
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

// knows reports whether rounds of requests that begin like o were seen.
func (s *prefixes) knows(o *opening, stands standing) bool {
	if o.n == 0 {
		return false
	}
	at, ok := s.index[o.hashes[0]]
	return ok && s.all[at].drafts[stands].promised > prefixWeight
}

// mean is what drafts bring in requests that begin like o. Every prefix leans on the shorter one, the shortest on lean; what a longer
// one has seen does not count again in the weight of a shorter.
func (s *prefixes) mean(o *opening, stands standing, lean float64) float64 {
	var known [len(prefixLengths) + 1]gauge
	for i, hash := range o.hashes[:o.n] {
		if at, ok := s.index[hash]; ok {
			known[i] = s.all[at].drafts[stands]
		}
	}
	for i, g := range known[:o.n] {
		if weight := g.promised - known[i+1].promised; weight > 0 {
			lean = (weight*g.accepted/g.promised + lean*prefixWeight) / (weight + prefixWeight)
		}
	}
	return lean
}

// add takes in a round, the first of some that are seen as one.
func (s *prefixes) add(o *opening, stands standing, promised, accepted float64) {
	s.clock++
	for _, hash := range o.hashes[:o.n] {
		at, ok := s.index[hash]
		if !ok {
			at = s.place()
			s.all[at] = prefix{hash: hash}
			s.index[hash] = at
		}
		p := &s.all[at]
		p.used = s.clock
		g := &p.drafts[stands]
		g.fade(1 - 1.0/prefixMemory)
		g.promised += promised
		g.accepted += accepted
	}
}

// more takes in a round that belongs to the one added last.
func (s *prefixes) more(o *opening, stands standing, promised, accepted float64) {
	for _, hash := range o.hashes[:o.n] {
		if at, ok := s.index[hash]; ok {
			g := &s.all[at].drafts[stands]
			g.promised += promised
			g.accepted += accepted
		}
	}
}

// place makes room for a prefix: that of the one used longest ago when there is no other.
func (s *prefixes) place() int {
	if len(s.all) < mostPrefixes {
		s.all = append(s.all, prefix{})
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

// rest lets what is known of rounds fade that are not run for it.
func (s *prefixes) rest(o *opening, stands standing) {
	s.clock++
	for _, hash := range o.hashes[:o.n] {
		if at, ok := s.index[hash]; ok {
			s.all[at].used = s.clock
			s.all[at].drafts[stands].fade(1 - 1.0/restMemory)
		}
	}
}
