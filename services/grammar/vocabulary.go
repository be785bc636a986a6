package grammar

import (
	"bytes"
	"slices"

	"github.com/tandem-inference/tandem/services/tokenizer"
)

// Vocabulary is a tokenizer's vocabulary as grammars need it: the bytes of its ordinary tokens as tries. It
// is immutable.
type Vocabulary struct {
	size    int
	words   int // of a mask
	longest int // bytes of the longest token
	named   func(text string) (int32, bool)
	bytes   func(id int32) []byte
	normal  []uint32 // ordinary tokens as a mask
	groups  []group
}

// Source lists a vocabulary.
type Source struct {
	// Size is the number of ids, the width of the logits.
	Size int
	// Bytes of an ordinary token, empty for tokens that are not text: they are reached only by terminals that name them.
	Bytes func(id int32) []byte
	// Named finds a token by its text.
	Named func(text string) (int32, bool)
}

// FromTokenizer is the vocabulary of a tokenizer for logits of size ids (0 = the tokenizer's own size). Control tokens
// and literal tags are not text.
func FromTokenizer(t *tokenizer.Tokenizer, size int) *Vocabulary {
	if size == 0 {
		size = t.VocabSize()
	}
	return NewVocabulary(Source{
		Size: size, Named: t.ID,
		Bytes: func(id int32) []byte {
			if k := t.TokenKind(id); k != tokenizer.KindNormal && k != tokenizer.KindByte {
				return nil
			}
			return t.TokenBytes(id)
		},
	})
}

// groups of a vocabulary, from the widest shape to the narrowest.
const groups = 5

// group are tokens of one shape, with the automaton of that shape.
type group struct {
	shape *tokenShape
	// covers lists the groups whose tokens are all texts of this shape, itself included.
	covers []int
	mask   []uint32
	// longest token of the group, in bytes.
	longest int
	nodes   []trieNode
}

// trieNode in depth-first order.
type trieNode struct {
	byte  byte
	depth uint16 // of the byte, 1 = first
	skip  int32  // first node that is not below this one
	token int32  // -1 = none ends here
}

// NewVocabulary builds the tries, in about a second for 150,000 tokens.
func NewVocabulary(src Source) *Vocabulary {
	v := &Vocabulary{size: src.Size, words: (src.Size + 31) / 32, named: src.Named, bytes: src.Bytes}
	v.normal = make([]uint32, v.words)
	v.groups = []group{
		{shape: anyText(), covers: []int{0, 1, 2, 3}},
		{shape: plainText(0), covers: []int{1, 2, 3}},
		{shape: plainText(2 * shortText), covers: []int{2, 3}},
		{shape: plainText(shortText), covers: []int{3}},
		{}, // tokens that begin or end inside a character
	}
	members := make([][]int32, len(v.groups))
	for id := range int32(src.Size) {
		b := src.Bytes(id)
		if len(b) == 0 || len(b) > 1<<12 {
			continue
		}
		v.longest = max(v.longest, len(b))
		setBit(v.normal, id)
		// The narrowest shape that holds it.
		g := groups - 1
		for i := groups - 2; i >= 0; i-- {
			if v.groups[i].shape.holds(b) {
				g = i
				break
			}
		}
		members[g] = append(members[g], id)
		v.groups[g].longest = max(v.groups[g].longest, len(b))
	}
	for i := range v.groups {
		v.groups[i].fill(v, members[i])
	}
	return v
}

func (g *group) fill(v *Vocabulary, ids []int32) {
	g.mask = make([]uint32, v.words)
	for _, id := range ids {
		setBit(g.mask, id)
	}
	slices.SortFunc(ids, func(a, b int32) int { return bytes.Compare(v.bytes(a), v.bytes(b)) })
	var path []int32 // nodes of the word before
	var last []byte
	closeTo := func(depth int) {
		for len(path) > depth {
			g.nodes[path[len(path)-1]].skip = int32(len(g.nodes))
			path = path[:len(path)-1]
		}
	}
	for _, id := range ids {
		b := v.bytes(id)
		same := 0
		for same < len(b) && same < len(last) && b[same] == last[same] {
			same++
		}
		closeTo(same)
		for d := same; d < len(b); d++ {
			path = append(path, int32(len(g.nodes)))
			g.nodes = append(g.nodes, trieNode{byte: b[d], depth: uint16(d + 1), token: -1})
		}
		if same == len(b) && len(b) == len(last) {
			// Another token with the same bytes: a node beside the first one.
			closeTo(len(b) - 1)
			path = append(path, int32(len(g.nodes)))
			g.nodes = append(g.nodes, trieNode{byte: b[len(b)-1], depth: uint16(len(b)), token: -1})
		}
		g.nodes[path[len(path)-1]].token = id
		last = b
	}
	closeTo(0)
}

func setBit(mask []uint32, id int32) { mask[id/32] |= 1 << (id % 32) }

// tokenShape is a small automaton over bytes; state 0 is the first, all states count as complete.
type tokenShape struct {
	next [][256]int16 // -1 = none
}

// shortText is the number of characters up to which plain tokens form a group of their own, as those of up to twice as
// many do: repetitions with few rounds left still take them whole.
const shortText = 12

// plainText holds characters that most places of texts allow: none of the controls, quotes, backslashes and angle
// brackets. limit is the number of characters, 0 = any.
func plainText(limit int) *tokenShape {
	return newShape(limit, func(c byte) bool { return c >= 0x20 && c != '"' && c != '\\' && c != '<' && c != 0x7F })
}

func anyText() *tokenShape { return newShape(0, func(byte) bool { return true }) }

func newShape(limit int, ascii func(byte) bool) *tokenShape {
	rounds := limit + 1
	if limit == 0 {
		rounds = 1
	}
	s := &tokenShape{next: make([][256]int16, rounds*utf8States)}
	for at := range s.next {
		done, state := at/utf8States, at%utf8States
		for c := range 256 {
			s.next[at][c] = -1
			to := utf8Step(state, byte(c))
			if to == utf8Bad || c < 0x80 && !ascii(byte(c)) {
				continue
			}
			n := done
			if state == utf8Start && limit > 0 {
				if n++; n > limit {
					continue
				}
			}
			s.next[at][c] = int16(n*utf8States + to)
		}
	}
	return s
}

// holds reports whether b is of the shape and ends with a whole character.
func (s *tokenShape) holds(b []byte) bool {
	at := int16(0)
	for _, c := range b {
		if at = s.next[at][c]; at < 0 {
			return false
		}
	}
	return at%utf8States == utf8Start
}
