package tokenizer

import "slices"

const (
	// longWindow is how many bytes of a long word are merged at a time. Merging takes up to 40 bytes of scratch a byte; a
	// larger window merges a smaller share of the word twice.
	longWindow = 32 << 10
	// reachShare is the part of a window, at its end, whose tokens are not used: they may depend on the bytes after the
	// window. A larger part merges more bytes twice and makes it rarer that a window has to be merged again.
	reachShare = 1.0 / 32
)

// border is a position of a long word at which one window's tokens end and the next window begins.
type border struct {
	start int // of the window whose tokens end here
	ids   int // length of dst before that window's tokens
	last  int // start of the last token before the border
}

// appendLong appends the ids of a long word, which are those of one merge run over all of it. The word is merged in
// windows, so that the scratch does not grow with it.
//
// Each window begins at a token border of the window before. That window ends somewhere in the word, so its borders are
// guesses. A border is right if no merge of the whole run crosses it, and then both sides merge as if they were alone,
// in the common order by rank and position. So it is enough to follow the pairs of symbols that meet at the border
// while both sides merge alone: see crossed. Several borders are right together if each is right between its two
// neighbours, because the first merge across any border would be found there. If a border is wrong, windows are twice
// as wide from there on, and the word is merged again from half a window before it.
func (t *Tokenizer) appendLong(dst []int32, word string, window int, sc *bpeScratch) []int32 {
	began := len(dst)
	borders := sc.borders[:0]
	for start := 0; ; {
		if n := len(borders); n > 0 {
			// The last token before the border merges alone, too, since both its ends are borders.
			t.spell(sc, word[borders[n-1].last:start])
			t.merges.applyHeap(sc)
			sc.before = append(sc.before[:0], sc.last...)
		}
		end := min(start+window, len(word))
		t.spell(sc, word[start:end])
		t.merges.applyHeap(sc)
		if n := len(borders); n > 0 && t.merges.crossed(sc.before, sc.first) {
			window = min(2*window, len(word))
			for wrong := start; n > 0 && wrong-start < window/2; n-- {
				start, dst = borders[n-1].start, dst[:borders[n-1].ids]
			}
			borders = borders[:n]
			continue
		}
		if end == len(word) {
			sc.borders = borders
			return append(dst, sc.ids...)
		}
		n, last, next := sc.lastBorder(end - start - max(1, int(float64(window)*reachShare)))
		if n == 0 { // one token fills the window
			window = min(2*window, len(word))
			continue
		}
		borders = append(borders, border{start: start, ids: len(dst), last: start + last})
		start += next
		if len(dst)+n > cap(dst) {
			rest := float64(len(dst)-began+n) / float64(start) * float64(len(word)-start)
			dst = slices.Grow(dst, n+int(1.02*rest))
		}
		dst = append(dst, sc.ids[:n]...)
	}
}

// lastBorder returns the last token border of a merge run at or before a position: the number of tokens before it, the
// start of the last of them, and the border. The number is 0 if the first token ends later.
func (sc *bpeScratch) lastBorder(limit int) (n, last, at int) {
	for int(sc.next[at]) <= limit {
		n, last, at = n+1, at, int(sc.next[at])
	}
	return n, last, at
}

// crossed reports whether two neighbouring parts of a word merge with each other. left lists the last symbols of the
// left part while that part merged alone, right the first symbols of the right part. In a table that gives a merge a
// lower rank than one that made its halves, the report may be wrongly true, never wrongly false.
func (m *merges) crossed(left, right []edge) bool {
	for i, j := 0, 0; ; {
		rank := m.rank(left[i].id, right[j].id)
		// The pair lasts until one of its symbols merges with its other neighbour. Of equal ranks the leftmost pair merges
		// first: one of the left part before this pair, this pair before one of the right part.
		switch {
		case i+1 < len(left) && (j+1 == len(right) || left[i+1].since <= right[j+1].since):
			if rank < left[i+1].since {
				return true
			}
			i++
		case j+1 < len(right):
			if rank <= right[j+1].since {
				return true
			}
			j++
		default:
			return rank != noRank
		}
	}
}
