package grammar

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unicode/utf8"
)

// kind of a node.
type kind uint8

const (
	kindEnd     kind = iota // the rule is complete
	kindBytes               // one byte, then where its edge leads
	kindTokens              // one whole token
	kindSplit               // either of several
	kindCall                // another rule, then next
	kindMembers             // the parts of a memberSet that may still come, or next
)

// node of the automaton. Only some fields count for a kind.
type node struct {
	kind  kind
	next  int32   // kindTokens, kindCall
	rule  int32   // kindCall
	solid bool    // kindCall: a round that matches the empty text does not count; other edges reach what follows
	to    []int32 // kindSplit
	edges []edge  // kindBytes: sorted, disjoint
	set   int32   // kindTokens: index of program.sets; kindMembers: of program.memberStates
}

// edge is a range of bytes.
type edge struct {
	lo, hi byte
	to     int32
}

// tokenSet is what a token terminal allows.
type tokenSet struct {
	not bool
	ids []int32 // sorted
}

// chain are the nodes of a counted repetition: nodes[i] is where i rounds are done.
type chain struct {
	nodes    []int32
	min, max int // max < 0: the last node is a loop
	// The same repetition without its bounds, to which a place far from them is equivalent: may continues or leaves,
	// must continues.
	may, must int32
}

// program is a grammar as one automaton per rule. Node 0 is the end that all rules share.
type program struct {
	nodes  []node
	starts []int32
	root   int32
	sets   []tokenSet
	chains []chain
	// Nodes of $members are made when they are reached: there is one for every set of parts that were there.
	memberSets   []memberSet
	memberStates []memberState
	memberNodes  map[string]int32 // by state
	fixed        int              // nodes that the text gave
	fixedStates  int
	crowded      bool   // there are too many nodes
	null         []bool // rules that match the empty text

	classes  int
	classOf  [256]uint8
	closures []*closure
	entries  int     // of all closures
	order    []int32 // rule -> its place among those that begin with each other: callers first
	rules    []int32 // place -> rule
}

// errTooLarge unwinds the building of a program.
type errTooLarge struct{}

type builder struct {
	*program
	syntax *Syntax
	vocab  *Vocabulary
	made   []expr // bodies of rules made for repetitions
	// Nodes that read a byte, by their edges, and calls, by rule and next, each once: places with the same continuation
	// are equal, so that a mask visits far fewer of them.
	bytesNodes map[string]int32
	callNodes  map[[2]int32]int32
	key        []byte // scratch
}

const end int32 = 0

// inlineRepeat is the number of copies up to which a repeated part is copied instead of becoming a rule.
const inlineRepeat = 4

// build makes the program. Errors are *Error.
func (s *Syntax) build(v *Vocabulary) (p *program, err error) {
	b := &builder{
		program: &program{nodes: []node{{kind: kindEnd}}}, syntax: s, vocab: v,
		bytesNodes: map[string]int32{}, callNodes: map[[2]int32]int32{},
	}
	defer func() {
		switch r := recover().(type) {
		case nil:
		case errTooLarge:
			p, err = nil, &Error{1, 1, fmt.Sprintf("the grammar needs more than %d states", MaxNodes)}
		case *Error:
			p, err = nil, r
		default:
			panic(r)
		}
	}()
	b.null = s.nullable()
	b.starts = make([]int32, len(s.rules))
	for i := range s.rules {
		b.starts[i] = b.expr(s.rules[i].body, end)
	}
	// Rules for repetitions may hold repetitions.
	for i := 0; i < len(b.made); i++ {
		b.starts[len(s.rules)+i] = b.expr(b.made[i], end)
	}
	b.root = int32(s.root)
	b.classify()
	b.closures = make([]*closure, len(b.nodes))
	b.sort()
	b.fixed, b.fixedStates = len(b.nodes), len(b.memberStates)
	return b.program, nil
}

func (b *builder) add(n node) int32 {
	if len(b.nodes) >= MaxNodes {
		panic(errTooLarge{})
	}
	b.nodes = append(b.nodes, n)
	return int32(len(b.nodes) - 1)
}

// bytes is the node that reads a byte.
func (b *builder) bytes(edges ...edge) int32 {
	b.key = b.key[:0]
	for _, e := range edges {
		b.key = binary.LittleEndian.AppendUint32(append(b.key, e.lo, e.hi), uint32(e.to))
	}
	n, ok := b.bytesNodes[string(b.key)]
	if !ok {
		n = b.add(node{kind: kindBytes, edges: edges})
		b.bytesNodes[string(b.key)] = n
	}
	return n
}

// call is the node that calls a rule. A solid one, or one whose next is set later, is a node of its own: see repeat.
func (b *builder) call(rule, next int32) int32 {
	n, ok := b.callNodes[[2]int32{rule, next}]
	if !ok {
		n = b.add(node{kind: kindCall, rule: rule, next: next})
		b.callNodes[[2]int32{rule, next}] = n
	}
	return n
}

// expr adds x in front of next and returns its first node.
func (b *builder) expr(x expr, next int32) int32 {
	switch x := x.(type) {
	case literal:
		for i := len(x) - 1; i >= 0; i-- {
			next = b.bytes(edge{x[i], x[i], next})
		}
		return next
	case chars:
		return b.chars(x, next)
	case seq:
		for _, y := range slices.Backward(x) {
			next = b.expr(y, next)
		}
		return next
	case alt:
		return b.alternatives(x, next)
	case ref:
		return b.call(int32(x), next)
	case repeat:
		return b.repeat(x, next)
	case tokens:
		return b.add(node{kind: kindTokens, set: b.tokenSet(x), next: next})
	case members:
		return b.members(x, next)
	case text:
		return b.text(x, next)
	}
	panic(fmt.Sprintf("grammar: unknown expression %T", x))
}

// alternatives adds a choice; those that are literals share their beginnings, so that long enumerations stay narrow.
func (b *builder) alternatives(x alt, next int32) int32 {
	var to []int32
	var words []string
	for _, y := range x {
		if s, ok := y.(literal); ok && s != "" {
			words = append(words, string(s))
		} else {
			to = append(to, b.expr(y, next))
		}
	}
	if len(words) > 0 {
		slices.Sort(words)
		to = append(to, b.words(slices.Compact(words), 0, next))
	}
	if len(to) == 1 {
		return to[0]
	}
	return b.add(node{kind: kindSplit, to: to})
}

// words adds the trie of sorted words that agree in their first at bytes and are longer.
func (b *builder) words(list []string, at int, next int32) int32 {
	var edges []edge
	for len(list) > 0 {
		c := list[0][at]
		n := 1
		for n < len(list) && list[n][at] == c {
			n++
		}
		group := list[:n]
		list = list[n:]
		to := next
		if len(group[0]) > at+1 {
			to = b.words(group, at+1, next)
		} else if len(group) > 1 {
			to = b.add(node{kind: kindSplit, to: []int32{next, b.words(group[1:], at+1, next)}})
		}
		edges = append(edges, edge{c, c, to})
	}
	return b.bytes(edges...)
}

func (b *builder) repeat(x repeat, next int32) int32 {
	copies := max(x.min, x.max)
	body := x.x
	if x.max == 0 {
		return next
	}
	solid := false
	if copies > inlineRepeat {
		if nullableExpr(body, b.null) {
			// Every round may be empty, so none need be taken, and passing over them one by one would take long.
			solid = true
			if x.min = 0; x.max < 0 {
				copies = 0
			}
		}
		if _, isRef := body.(ref); !isRef {
			body = b.rule(body)
		}
	}
	c := chain{min: x.min, max: x.max}
	if x.max < 0 {
		loop := b.add(node{kind: kindSplit})
		first := b.expr(body, loop)
		b.nodes[loop].to = []int32{first, next}
		next = loop
	}
	c.nodes = append(c.nodes, next)
	for i := copies - 1; i >= 0; i-- {
		var first int32
		if solid {
			first = b.add(node{kind: kindCall, rule: int32(body.(ref)), next: c.nodes[len(c.nodes)-1], solid: true})
		} else {
			first = b.expr(body, c.nodes[len(c.nodes)-1])
		}
		if i >= x.min {
			// Every optional round may leave the whole repetition, so that a closure does not grow with the number
			// of rounds.
			first = b.add(node{kind: kindSplit, to: []int32{first, next}})
		}
		c.nodes = append(c.nodes, first)
	}
	slices.Reverse(c.nodes)
	if copies > inlineRepeat {
		round := node{kind: kindCall, rule: int32(body.(ref)), solid: solid}
		c.must = b.add(round)
		b.nodes[c.must].next = c.must
		first := b.add(round)
		c.may = b.add(node{kind: kindSplit, to: []int32{first, next}})
		b.nodes[first].next = c.may
		b.chains = append(b.chains, c)
	}
	return c.nodes[0]
}

// rule makes x a rule of its own and returns the call.
func (b *builder) rule(x expr) expr {
	if len(b.starts) >= 2*MaxRules {
		panic(errTooLarge{})
	}
	b.made = append(b.made, x)
	b.null = append(b.null, nullableExpr(x, b.null))
	b.starts = append(b.starts, 0)
	return ref(len(b.starts) - 1)
}

func (b *builder) tokenSet(x tokens) int32 {
	set := tokenSet{not: x.not}
	for _, t := range x.list {
		id := t.id
		if t.text != "" {
			var ok bool
			if id, ok = b.vocab.named(t.text); !ok {
				panic(faultAt(b.syntax.text, t.at, fmt.Sprintf("the vocabulary has no token %q", t.text)))
			}
		}
		if id < 0 || int(id) >= b.vocab.size {
			panic(faultAt(b.syntax.text, t.at, fmt.Sprintf("token %d is outside the vocabulary of %d", id, b.vocab.size)))
		}
		set.ids = append(set.ids, id)
	}
	slices.Sort(set.ids)
	set.ids = slices.Compact(set.ids)
	b.sets = append(b.sets, set)
	return int32(len(b.sets) - 1)
}

// byteRange of one place in a UTF-8 sequence.
type byteRange struct{ lo, hi byte }

// chars adds nodes for one character of the class.
func (b *builder) chars(c chars, next int32) int32 {
	var sequences [][]byteRange
	for _, r := range c {
		sequences = appendUTF8(sequences, r.lo, r.hi)
	}
	made := map[string]int32{}
	return b.sequences(sequences, next, made)
}

// sequences adds a node for the first bytes of sequences and, below it, for the rest; equal rests share nodes.
func (b *builder) sequences(list [][]byteRange, next int32, made map[string]int32) int32 {
	var bytes []byte
	for _, s := range list {
		bytes = append(bytes, byte(len(s)))
		for _, r := range s {
			bytes = append(bytes, r.lo, r.hi)
		}
	}
	key := string(bytes)
	if n, ok := made[key]; ok {
		return n
	}
	// Cut the leading bytes where a range begins or ends, so that each piece has one list of rests.
	var cuts [257]bool
	for _, s := range list {
		cuts[s[0].lo], cuts[int(s[0].hi)+1] = true, true
	}
	var edges []edge
	for lo := 0; lo < 256; {
		hi := lo
		for hi < 255 && !cuts[hi+1] {
			hi++
		}
		var rests [][]byteRange
		hit, ends := false, false
		for _, s := range list {
			if int(s[0].lo) <= lo && hi <= int(s[0].hi) {
				hit = true
				if len(s) == 1 {
					ends = true
				} else {
					rests = append(rests, s[1:])
				}
			}
		}
		if hit {
			to := next
			if !ends {
				to = b.sequences(rests, next, made)
			}
			if n := len(edges); n > 0 && edges[n-1].to == to && int(edges[n-1].hi)+1 == lo {
				edges[n-1].hi = byte(hi)
			} else {
				edges = append(edges, edge{byte(lo), byte(hi), to})
			}
		}
		lo = hi + 1
	}
	n := b.bytes(edges...)
	made[key] = n
	return n
}

// appendUTF8 appends the byte sequences of the characters lo..hi.
func appendUTF8(list [][]byteRange, lo, hi rune) [][]byteRange {
	// Parts of equal length first.
	for _, last := range []rune{0x7F, 0x7FF, 0xFFFF} {
		if lo <= last && last < hi {
			return appendUTF8(appendUTF8(list, lo, last), last+1, hi)
		}
	}
	if hi < utf8.RuneSelf {
		return append(list, []byteRange{{byte(lo), byte(hi)}})
	}
	// Then so that below a differing byte all others run over their whole range.
	for i := 1; i < utf8.RuneLen(hi); i++ {
		m := rune(1)<<(6*i) - 1
		if lo&^m == hi&^m {
			continue
		}
		if lo&m != 0 {
			return appendUTF8(appendUTF8(list, lo, lo|m), lo|m+1, hi)
		}
		if hi&m != m {
			return appendUTF8(appendUTF8(list, lo, hi&^m-1), hi&^m, hi)
		}
	}
	var a, z [utf8.UTFMax]byte
	n := utf8.EncodeRune(a[:], lo)
	utf8.EncodeRune(z[:], hi)
	s := make([]byteRange, n)
	for i := range n {
		s[i] = byteRange{a[i], z[i]}
	}
	return append(list, s)
}

// classify gives bytes that no edge distinguishes the same number.
func (p *program) classify() {
	var cut [257]bool
	for i := range p.nodes {
		for _, e := range p.nodes[i].edges {
			cut[e.lo], cut[int(e.hi)+1] = true, true
		}
	}
	for c := range 256 {
		if c > 0 && cut[c] {
			p.classes++
		}
		p.classOf[c] = uint8(p.classes)
	}
	p.classes++
}
