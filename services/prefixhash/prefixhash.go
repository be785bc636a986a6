// Package prefixhash compares prefixes of prompts and names them by numbers, so that workers can report which prefixes
// they hold and the gateway finds them in a prompt, at any length, in one pass.
//
// A number depends on the isolation key, so that a request that may not use a state does not find it either. Equal
// numbers of unequal prompts cost time only, since a worker compares the tokens themselves.
package prefixhash

import (
	"crypto/sha256"
	"encoding/binary"
)

// seed is the number of no tokens in an isolation.
func seed(isolation string) uint64 {
	sum := sha256.Sum256([]byte("prefix " + isolation))
	return binary.LittleEndian.Uint64(sum[:])
}

// next goes on with a token: the finaliser of splitmix64 (Steele, Lea, Flood, 2014) over state and token.
func next(h uint64, token int32) uint64 {
	h += 0x9e3779b97f4a7c15 * (uint64(uint32(token)) + 1)
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// Common is how many tokens two prompts begin with alike.
func Common(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// Of is the number of tokens.
func Of(isolation string, tokens []int32) uint64 {
	h := seed(isolation)
	for _, t := range tokens {
		h = next(h, t)
	}
	return h
}

// All are the numbers of all begins of tokens: entry n is that of the first n.
func All(isolation string, tokens []int32) []uint64 {
	list := make([]uint64, 1, len(tokens)+1)
	list[0] = seed(isolation)
	for i, t := range tokens {
		list = append(list, next(list[i], t))
	}
	return list
}
