package emit

// matcher finds the first of several byte strings in a stream, one byte at a time (the automaton of Aho and Corasick).
// Because it looks at single bytes, what it finds does not depend on how the stream was cut.
//
// The match that ends first wins; of those that end at the same byte the longest, which begins first.
type matcher struct {
	words [][]byte
	nodes []node
	start [256]bool // bytes that leave the root
	at    int32
}

type node struct {
	next  map[byte]int32
	fail  int32
	depth int32
	// word is 1 + the index of the longest word that ends here, 0 = none.
	word int32
}

// newMatcher returns nil when there are no words. Words must not be empty.
func newMatcher(words []string) *matcher {
	if len(words) == 0 {
		return nil
	}
	m := &matcher{nodes: []node{{next: map[byte]int32{}}}}
	for i, w := range words {
		m.words = append(m.words, []byte(w))
		at := int32(0)
		for j := range len(w) {
			to, ok := m.nodes[at].next[w[j]]
			if !ok {
				to = int32(len(m.nodes))
				m.nodes = append(m.nodes, node{next: map[byte]int32{}, depth: int32(j + 1)})
				m.nodes[at].next[w[j]] = to
			}
			at = to
		}
		if m.nodes[at].word == 0 {
			m.nodes[at].word = int32(i + 1)
		}
		m.start[w[0]] = true
	}
	m.link()
	return m
}

// link sets the fail edges breadth first: fail is the longest proper suffix that is a prefix of some word.
func (m *matcher) link() {
	queue := []int32{0}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		for c, to := range m.nodes[at].next {
			f := int32(0)
			if at != 0 {
				f = m.step(m.nodes[at].fail, c)
			}
			m.nodes[to].fail = f
			if m.nodes[to].word == 0 {
				m.nodes[to].word = m.nodes[f].word
			}
			queue = append(queue, to)
		}
	}
}

func (m *matcher) step(at int32, c byte) int32 {
	for {
		if to, ok := m.nodes[at].next[c]; ok {
			return to
		}
		if at == 0 {
			return 0
		}
		at = m.nodes[at].fail
	}
}

// push advances by one byte. word is the index of a found word, -1 for none.
func (m *matcher) push(c byte) (word int) {
	if m.at == 0 && !m.start[c] {
		return -1
	}
	m.at = m.step(m.at, c)
	return int(m.nodes[m.at].word) - 1
}

// held is the number of last bytes that may still become a word.
func (m *matcher) held() int { return int(m.nodes[m.at].depth) }
