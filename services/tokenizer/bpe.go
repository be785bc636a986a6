package tokenizer

import (
	"fmt"
	"math"
	"slices"
)

// noRank marks a pair that does not merge.
const noRank = math.MaxInt32

// merges answers which pairs of symbols merge, how strongly and into what. A hash table with open addressing: one
// lookup per symbol pair is where encoding spends its time.
type merges struct {
	slots []mergeSlot
	mask  uint64
	// result holds the merged symbol by rank.
	result []int32
}

type mergeSlot struct {
	left, right int32 // left is -1 in an empty slot
	rank        int32
}

func newMerges(n int) *merges {
	size := 16
	for size < 2*n {
		size *= 2
	}
	m := &merges{slots: make([]mergeSlot, size), mask: uint64(size - 1), result: make([]int32, 0, n)}
	for i := range m.slots {
		m.slots[i].left = -1
	}
	return m
}

// add appends the next merge in order of rank.
func (m *merges) add(left, right, result int32) error {
	i := m.home(left, right)
	for ; m.slots[i].left >= 0; i = (i + 1) & m.mask {
		if m.slots[i].left == left && m.slots[i].right == right {
			return fmt.Errorf("pair is listed twice (ranks %d and %d)", m.slots[i].rank, len(m.result))
		}
	}
	m.slots[i] = mergeSlot{left, right, int32(len(m.result))}
	m.result = append(m.result, result)
	return nil
}

func (m *merges) home(left, right int32) uint64 {
	h := (uint64(uint32(left))<<32 | uint64(uint32(right))) * 0x9E3779B97F4A7C15 // Fibonacci hashing
	return (h ^ h>>32) & m.mask
}

func (m *merges) rank(left, right int32) int32 {
	for i := m.home(left, right); ; i = (i + 1) & m.mask {
		s := &m.slots[i]
		if s.left == left && s.right == right {
			return s.rank
		}
		if s.left < 0 {
			return noRank
		}
	}
}

// bpeScratch holds the buffers of one merge run, reused between pieces.
type bpeScratch struct {
	ids, ranks []int32
	prev, next []int32 // after applyHeap, next leads from each symbol that is left to where the following one begins
	heap       []uint64
	// first and last list what the outermost symbols were, in order of time. Only applyHeap writes them.
	first, last []edge
	// borders and before are scratch of appendLong.
	borders []border
	before  []edge
}

// edge is a symbol at an end of a merge run.
type edge struct {
	id int32
	// since is the highest rank merged so far in the run when the symbol was made, -1 for the first one.
	since int32
}

// shortPiece is the number of symbols up to which the plain scan is used; it is quadratic but has no set-up.
const shortPiece = 48

// apply merges the symbols in sc.ids and leaves the result there.
func (m *merges) apply(sc *bpeScratch) {
	if len(sc.ids) <= shortPiece {
		m.applyScan(sc)
	} else {
		m.applyHeap(sc)
	}
}

// applyScan repeatedly merges the strongest pair, leftmost on ties.
func (m *merges) applyScan(sc *bpeScratch) {
	ids := sc.ids
	ranks := sc.ranks[:0]
	for i := 0; i+1 < len(ids); i++ {
		ranks = append(ranks, m.rank(ids[i], ids[i+1]))
	}
	for {
		best, at := int32(noRank), -1
		for i, r := range ranks {
			if r < best {
				best, at = r, i
			}
		}
		if at < 0 {
			break
		}
		ids[at] = m.result[best]
		ids = append(ids[:at+1], ids[at+2:]...)
		ranks = append(ranks[:at], ranks[at+1:]...)
		if at < len(ranks) {
			ranks[at] = m.rank(ids[at], ids[at+1])
		}
		if at > 0 {
			ranks[at-1] = m.rank(ids[at-1], ids[at])
		}
	}
	sc.ids, sc.ranks = ids, ranks
}

// applyHeap does the same with a heap over (rank, position) and lazy deletion: an entry counts only while the pair at
// its position still has that rank. Ranks identify pairs, so nothing else needs comparing.
func (m *merges) applyHeap(sc *bpeScratch) {
	n := len(sc.ids)
	ids := sc.ids
	ranks := slices.Grow(sc.ranks[:0], n)[:n]
	prev := slices.Grow(sc.prev[:0], n)[:n]
	next := slices.Grow(sc.next[:0], n)[:n]
	heap := sc.heap[:0]
	sc.first, sc.last = sc.first[:0], sc.last[:0]
	if n > 0 {
		sc.first, sc.last = append(sc.first, edge{ids[0], -1}), append(sc.last, edge{ids[n-1], -1})
	}
	highest := int32(-1)
	for i := range n {
		prev[i], next[i] = int32(i-1), int32(i+1)
		ranks[i] = noRank
		if i+1 < n {
			if r := m.rank(ids[i], ids[i+1]); r != noRank {
				ranks[i] = r
				heap = append(heap, uint64(r)<<32|uint64(i))
			}
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		siftDown(heap, i)
	}
	for len(heap) > 0 {
		top := heap[0]
		heap[0] = heap[len(heap)-1]
		heap = heap[:len(heap)-1]
		siftDown(heap, 0)
		rank, i := int32(top>>32), int32(uint32(top))
		if ranks[i] != rank {
			continue
		}
		gone := next[i]
		ids[i] = m.result[rank]
		ids[gone] = -1
		ranks[gone] = noRank
		next[i] = next[gone]
		highest = max(highest, rank)
		if next[i] < int32(n) {
			prev[next[i]] = i
		} else {
			sc.last = append(sc.last, edge{ids[i], highest})
		}
		if i == 0 {
			sc.first = append(sc.first, edge{ids[0], highest})
		}
		for _, left := range [2]int32{prev[i], i} {
			if left < 0 {
				continue
			}
			ranks[left] = noRank
			if right := next[left]; right < int32(n) {
				if r := m.rank(ids[left], ids[right]); r != noRank {
					ranks[left] = r
					heap = append(heap, uint64(r)<<32|uint64(left))
					siftUp(heap, len(heap)-1)
				}
			}
		}
	}
	out := ids[:0]
	for i := int32(0); i < int32(n); i = next[i] {
		out = append(out, ids[i])
	}
	sc.ids, sc.ranks, sc.prev, sc.next, sc.heap = out, ranks, prev, next, heap
}

func siftDown(h []uint64, i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1] < h[c] {
			c++
		}
		if h[i] <= h[c] {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}

func siftUp(h []uint64, i int) {
	for i > 0 {
		p := (i - 1) / 2
		if h[p] <= h[i] {
			return
		}
		h[p], h[i] = h[i], h[p]
		i = p
	}
}
