package generate

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
)

// shareSalt keeps what workers are told of an asker from being traced back to a key, session or host; it is another one
// in every process.
type shareSalt [16]byte

func newShareSalt() (s shareSalt) {
	_, _ = rand.Read(s[:]) // never fails
	return s
}

// key is a number for an asker, the same for all requests of its share; 0 for nobody.
func (s *shareSalt) key(share string) uint64 {
	if share == "" {
		return 0
	}
	sum := sha256.Sum256(append(s[:len(s):len(s)], share...))
	return binary.LittleEndian.Uint64(sum[:])
}
