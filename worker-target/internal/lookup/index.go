package lookup

import "math/bits"

const (
	// MinGram and MaxGram are the fewest and most tokens that an occurrence is found by. One token predicts little: on
	// texts of the demonstration models it predicts the next in 2 of 10 cases, two tokens in 6 of 10.
	MinGram, MaxGram = 2, 6
	// MaxMatched bounds Matched: longer ones predict no better.
	MaxMatched = 32

	grams    = MaxGram - MinGram + 1
	minSlots = 1 << 10
)

// Index of one text. Not safe for concurrent use. The zero value is an empty text.
type Index struct {
	tokens  []int32
	tables  [grams]table
	source  int // position after the occurrence that the newest tokens repeat, 0 = none
	matched int // tokens before source that are equal to the newest ones
}

// table maps n-grams to the position of the last token of their latest occurrence.
type table struct {
	slots []int32 // position + 1, 0 = free; a power of two
	used  int
	shift int // of a hash, to a slot
}

// Reset empties the index for a text of so many tokens; it may become longer.
func (x *Index) Reset(tokens int) {
	x.tokens = x.tokens[:0]
	x.source, x.matched = 0, 0
	for i := range x.tables {
		x.tables[i].reset(tokens)
	}
}

func (t *table) reset(entries int) {
	n := minSlots
	for n*3 < entries*4 {
		n *= 2
	}
	t.use(n)
}

// use empties the table and gives it n slots, in the memory that it has if that is enough.
func (t *table) use(n int) {
	if n <= cap(t.slots) {
		t.slots = t.slots[:n]
		clear(t.slots)
	} else {
		t.slots = make([]int32, n)
	}
	t.used, t.shift = 0, 64-bits.Len(uint(n-1))
}

// Len is the number of tokens.
func (x *Index) Len() int { return len(x.tokens) }

// Matched is the number of newest tokens that occurred before as they stand, at most MaxMatched; 0 when fewer than
// MinGram did.
func (x *Index) Matched() int { return x.matched }

// Next is the token that followed the occurrence; ok is false when there was none.
func (x *Index) Next() (token int32, ok bool) {
	if x.matched == 0 {
		return 0, false
	}
	return x.tokens[x.source], true
}

// Propose appends the n tokens that followed the occurrence. Where they reach the end of the text they continue with
// themselves: a repetition is expected to continue.
func (x *Index) Propose(out []int32, n int) []int32 {
	if x.matched == 0 {
		return out
	}
	period := len(x.tokens) - x.source
	for i := range n {
		if i < period {
			out = append(out, x.tokens[x.source+i])
		} else {
			out = append(out, out[len(out)-period])
		}
	}
	return out
}

// Behind appends to out the n tokens that are expected after path, which is one token at least and assumed to follow
// the text: those that followed the latest occurrence in the text of the newest tokens, path included. matched is the
// length of the match, 0 when there is none. Occurrences within path are not found, and the index does not change. out
// may be path.
func (x *Index) Behind(path, out []int32, n int) (_ []int32, matched int) {
	source := 0
	h := uint64(0)
	for gram := 1; gram <= min(MaxGram, len(x.tokens)+len(path)); gram++ {
		h = mix(h, x.newest(path, gram-1))
		if gram < MinGram {
			continue
		}
		last := x.find(h, path, gram)
		if last < 0 {
			break
		}
		source, matched = last+1, gram
	}
	if matched == 0 {
		return out, 0
	}
	for matched >= MaxGram && matched < min(MaxMatched, source) && x.tokens[source-1-matched] == x.newest(path, matched) {
		matched++
	}
	period := len(x.tokens) + len(path) - source
	for i := range n {
		switch {
		case source+i < len(x.tokens):
			out = append(out, x.tokens[source+i])
		case i < period:
			out = append(out, path[source+i-len(x.tokens)])
		default:
			out = append(out, out[len(out)-period])
		}
	}
	return out, matched
}

// newest is the token of text and path after which there are i others.
func (x *Index) newest(path []int32, i int) int32 {
	if i < len(path) {
		return path[len(path)-1-i]
	}
	return x.tokens[len(x.tokens)-1-(i-len(path))]
}

// find returns where the n newest tokens of text and path, with hash h, ended in the text last, -1 for nowhere.
func (x *Index) find(h uint64, path []int32, n int) int {
	t := &x.tables[n-MinGram]
	if len(t.slots) == 0 {
		return -1
	}
	mask := len(t.slots) - 1
search:
	for i := slot(h, t.shift); ; i = (i + 1) & mask {
		last := int(t.slots[i]) - 1
		if last < 0 {
			return -1
		}
		for k := range n {
			if x.tokens[last-k] != x.newest(path, k) {
				continue search
			}
		}
		return last
	}
}

// Extend appends tokens to the text.
func (x *Index) Extend(tokens []int32) {
	for _, token := range tokens {
		x.Append(token)
	}
}

// Append appends a token to the text.
func (x *Index) Append(token int32) {
	at := len(x.tokens)
	x.tokens = append(x.tokens, token)
	last, found := -1, 0
	h := uint64(0)
	for n := 1; n <= min(MaxGram, at+1); n++ {
		h = mix(h, x.tokens[at+1-n])
		if n < MinGram {
			continue
		}
		t := &x.tables[n-MinGram]
		if len(t.slots) == 0 {
			t.use(minSlots)
		}
		// If the newest n tokens did not occur before, neither did more.
		if p := x.put(t, h, n, at, found == n-1 || n == MinGram); p >= 0 {
			last, found = p, n
		}
	}
	if found == 0 {
		x.source, x.matched = 0, 0
		return
	}
	continued := x.matched > 0 && x.source == last
	switch {
	case found < MaxGram:
		x.matched = found
	case continued && x.matched >= MaxGram:
		x.matched = min(x.matched+1, MaxMatched)
	default:
		x.matched = found
		for x.matched < min(MaxMatched, last+1) && x.tokens[last-x.matched] == x.tokens[at-x.matched] {
			x.matched++
		}
	}
	x.source = last + 1
}

// mix takes the token before the others into the hash of an n-gram, which is thus built from its end.
func mix(h uint64, token int32) uint64 {
	h = (h ^ uint64(uint32(token)) + 1) * 0x9e3779b97f4a7c15
	return h ^ h>>29
}

// put notes that the n-gram with hash h ends at position at, and returns where it ended before, -1 for nowhere. old is
// false when it is known to be new.
func (x *Index) put(t *table, h uint64, n, at int, old bool) int {
	mask := len(t.slots) - 1
	for i := slot(h, t.shift); ; i = (i + 1) & mask {
		p := int(t.slots[i]) - 1
		if p < 0 {
			t.slots[i] = int32(at + 1)
			if t.used++; t.used*4 > len(t.slots)*3 {
				x.grow(t, n)
			}
			return -1
		}
		if old && x.equal(p, at, n) {
			t.slots[i] = int32(at + 1)
			return p
		}
	}
}

func slot(h uint64, shift int) int { return int(h * 0xd6e8feb86659fd93 >> shift) }

// equal compares the n tokens that end at a and at b.
func (x *Index) equal(a, b, n int) bool {
	p, q := x.tokens[a+1-n:a+1], x.tokens[b+1-n:b+1]
	for i := n - 1; i >= 0; i-- {
		if p[i] != q[i] {
			return false
		}
	}
	return true
}

// grow doubles a table of n-grams.
func (x *Index) grow(t *table, n int) {
	old := t.slots
	t.slots = nil
	t.use(2 * len(old))
	mask := len(t.slots) - 1
	for _, s := range old {
		if s == 0 {
			continue
		}
		h := uint64(0)
		for i := range n {
			h = mix(h, x.tokens[int(s)-1-i])
		}
		i := slot(h, t.shift)
		for t.slots[i] != 0 {
			i = (i + 1) & mask
		}
		t.slots[i] = s
		t.used++
	}
}
