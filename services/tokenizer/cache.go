package tokenizer

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
)

// Piece cache: sets of two slots, no locks. A slot holds one immutable entry; a new piece moves the set's younger entry
// to the older place. At most cacheSets·2 entries of pieces up to maxCachedBytes, so a few MiB whatever the input.
// Writers may race for a slot: then one entry is lost, never a wrong one read.
const (
	cacheSets      = 1 << 14
	maxCachedBytes = 64
)

type cacheEntry struct {
	piece string
	ids   []int32
}

type cacheSet struct {
	young, old atomic.Pointer[cacheEntry]
}

type pieceCache struct {
	seed maphash.Seed
	sets [cacheSets]cacheSet
}

func newPieceCache() *pieceCache { return &pieceCache{seed: maphash.MakeSeed()} }

func (c *pieceCache) set(piece string) *cacheSet {
	return &c.sets[maphash.String(c.seed, piece)&(cacheSets-1)]
}

// get returns the ids of a piece, nil when it is not cached.
func (c *pieceCache) get(piece string) []int32 {
	s := c.set(piece)
	if e := s.young.Load(); e != nil && e.piece == piece {
		return e.ids
	}
	if e := s.old.Load(); e != nil && e.piece == piece {
		return e.ids
	}
	return nil
}

// put remembers a copy of piece and ids; both may be reused by the caller.
func (c *pieceCache) put(piece string, ids []int32) {
	s := c.set(piece)
	e := &cacheEntry{piece: strings.Clone(piece), ids: append([]int32(nil), ids...)}
	s.old.Store(s.young.Swap(e))
}
