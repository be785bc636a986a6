package grammar

import (
	"encoding/binary"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// dfa is a deterministic automaton over characters; state 0 is the first. It is immutable.
type dfa struct {
	cuts  []rune    // where the intervals of the alphabet begin; the first is 0
	next  [][]int32 // by state and interval, -1 = nothing follows
	final []bool
}

// Bounds of automata: states of one, and cells of its table.
const (
	maxLangStates = 2500
	maxLangCells  = 600_000
	maxLangNodes  = 20_000 // of the nondeterministic automaton of a pattern
)

// errLang is a pattern that cannot be turned into an automaton.
type errLang string

func (e errLang) Error() string { return string(e) }

const errLangSize = errLang("needs too many states")

// interval is the index of the interval that holds r.
func (d *dfa) interval(r rune) int {
	i, ok := slices.BinarySearch(d.cuts, r)
	if !ok {
		i--
	}
	return i
}

// matches reports whether a text is in the language.
func (d *dfa) matches(text string) bool {
	if d.empty() {
		return false
	}
	at := int32(0)
	for _, r := range text {
		if at = d.next[at][d.interval(r)]; at < 0 {
			return false
		}
	}
	return d.final[at]
}

// empty reports whether no text is in the language. The automaton must be trimmed.
func (d *dfa) empty() bool { return len(d.next) == 0 }

// operand of a product: a language or its complement.
type operand struct {
	*dfa
	not bool
}

// intersect returns the texts that are in all languages, of least to most characters (most < 0: any number), trimmed
// and minimal, and how many cells of tables were visited.
func intersect(list []operand, least, most int) (d *dfa, cells int, err error) {
	cuts := []rune{0}
	for _, o := range list {
		cuts = append(cuts, o.cuts...)
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	// at maps an interval of the product to that of an operand.
	at := make([][]int, len(list))
	for i, o := range list {
		at[i] = make([]int, len(cuts))
		for k, r := range cuts {
			at[i][k] = o.interval(r)
		}
	}
	out := &dfa{cuts: cuts}
	made := map[string]int32{}
	var states [][]int32
	add := func(s []int32) int32 {
		b := make([]byte, 0, 4*len(s))
		for _, v := range s {
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		}
		if n, ok := made[string(b)]; ok {
			return n
		}
		n := int32(len(states))
		made[string(b)] = n
		states = append(states, slices.Clone(s))
		return n
	}
	limit := int32(least) // the last element counts characters, at most to this limit
	if most >= 0 {
		limit = int32(most)
	}
	s := make([]int32, len(list)+1)
	for i, o := range list {
		if o.empty() {
			if !o.not {
				return &dfa{cuts: []rune{0}}, 0, nil
			}
			s[i] = -1
		}
	}
	add(s)
	for n := 0; n < len(states); n++ {
		if n > 2*maxLangStates || n*len(cuts) > maxLangCells {
			return nil, n * len(cuts), errLangSize
		}
		from := states[n]
		count := from[len(list)]
		final := count >= int32(least)
		for i, o := range list {
			final = final && (from[i] >= 0 && o.final[from[i]]) != o.not
		}
		row := make([]int32, len(cuts))
		for k := range cuts {
			row[k] = -1
			if most >= 0 && count >= limit {
				continue
			}
			s[len(list)] = min(count+1, limit)
			dead := false
			for i, o := range list {
				s[i] = -1
				if from[i] >= 0 {
					s[i] = o.next[from[i]][at[i][k]]
				}
				dead = dead || s[i] < 0 && !o.not
			}
			if !dead {
				row[k] = add(s)
			}
		}
		out.next = append(out.next, row)
		out.final = append(out.final, final)
	}
	cells = len(states) * len(cuts)
	out = out.trimmed().minimal()
	if len(out.next) > maxLangStates {
		return nil, cells, errLangSize
	}
	return out, cells, nil
}

// trimmed leaves out the states from which no text is complete.
func (d *dfa) trimmed() *dfa {
	from := make([][]int32, len(d.next)) // states that lead to a state
	for n, row := range d.next {
		for _, to := range row {
			if to >= 0 {
				from[to] = append(from[to], int32(n))
			}
		}
	}
	live := slices.Clone(d.final)
	var queue []int32
	for n, l := range live {
		if l {
			queue = append(queue, int32(n))
		}
	}
	for len(queue) > 0 {
		n := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, m := range from[n] {
			if !live[m] {
				live[m] = true
				queue = append(queue, m)
			}
		}
	}
	if len(live) == 0 || !live[0] {
		return &dfa{cuts: []rune{0}}
	}
	name := make([]int32, len(live))
	out := &dfa{cuts: d.cuts}
	for n, l := range live {
		name[n] = -1
		if l {
			name[n] = int32(len(out.final))
			out.final = append(out.final, d.final[n])
		}
	}
	for n, l := range live {
		if l {
			row := slices.Clone(d.next[n])
			for k, to := range row {
				if to >= 0 {
					row[k] = name[to]
				}
			}
			out.next = append(out.next, row)
		}
	}
	return out
}

// minimal joins equivalent states. d has no dead states.
func (d *dfa) minimal() *dfa {
	if len(d.next) == 0 {
		return d
	}
	class, count := d.classes()
	// State 0 has class 0: classes are numbered as they are met.
	out := &dfa{cuts: d.cuts, next: make([][]int32, count), final: make([]bool, count)}
	for n, row := range d.next {
		c := class[n]
		if out.next[c] != nil {
			continue
		}
		out.final[c] = d.final[n]
		out.next[c] = make([]int32, len(row))
		for k, to := range row {
			out.next[c][k] = -1
			if to >= 0 {
				out.next[c][k] = class[to]
			}
		}
	}
	return out
}

// onlyTexts is the language of some texts.
func onlyTexts(texts []string) *dfa {
	cuts := []rune{0}
	for _, s := range texts {
		for _, r := range s {
			cuts = append(cuts, r, r+1)
		}
	}
	slices.Sort(cuts)
	d := &dfa{cuts: slices.Compact(cuts)}
	add := func() int32 {
		row := make([]int32, len(d.cuts))
		for i := range row {
			row[i] = -1
		}
		d.next = append(d.next, row)
		d.final = append(d.final, false)
		return int32(len(d.next) - 1)
	}
	add()
	for _, s := range texts {
		at := int32(0)
		for _, r := range s {
			k := d.interval(r)
			if d.next[at][k] < 0 {
				to := add()
				d.next[at][k] = to
			}
			at = d.next[at][k]
		}
		d.final[at] = true
	}
	return d
}

// patternLang is the language of the texts in which a regular expression is found. Look-aheads are followed at the
// beginning of the text. The cells visited are added to cells.
func patternLang(text string, cells *int) ([]operand, error) {
	text = fromECMA(text)
	var list []operand
	one := func(text string, not bool) error {
		re, err := syntax.Parse(text, syntax.Perl)
		if err != nil {
			return fmt.Errorf("cannot be read: %w", err)
		}
		d, err := regexLang(re, cells)
		if err == nil {
			list = append(list, operand{d, not})
		}
		return err
	}
	if rest, ok := strings.CutPrefix(text, "^"); ok {
		for strings.HasPrefix(rest, "(?=") || strings.HasPrefix(rest, "(?!") {
			n := closing(rest)
			if n < 0 {
				break
			}
			if err := one("^(?:"+rest[3:n]+")", rest[2] == '!'); err != nil {
				return nil, err
			}
			rest = rest[n+1:]
		}
		if len(list) > 0 {
			// The look-aheads bind only the first alternative of the whole pattern.
			if !grouped(rest) {
				return nil, errLang("has a look-ahead beside alternatives")
			}
			text = "^" + rest
		}
	}
	err := one(text, false)
	return list, err
}

// eachOutside calls visit for every byte of a pattern that is part of no class and no escape, with the depth of groups
// after it, until visit returns false.
func eachOutside(text string, visit func(i, depth int) bool) {
	depth, class := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\':
			i++
			continue
		case class:
			class = c != ']'
			continue
		case c == '[':
			class = true
			continue
		case c == '(':
			depth++
		case c == ')':
			depth--
		}
		if !visit(i, depth) {
			return
		}
	}
}

// closing is the place of the parenthesis that closes the one at the beginning, -1 when there is none.
func closing(text string) int {
	at := -1
	eachOutside(text, func(i, depth int) bool {
		if text[i] == ')' && depth == 0 {
			at = i
		}
		return at < 0
	})
	return at
}

// grouped reports whether no bar stands outside the groups of a pattern.
func grouped(text string) bool {
	bar := false
	eachOutside(text, func(i, depth int) bool {
		bar = text[i] == '|' && depth == 0
		return !bar
	})
	return !bar
}

// spaceECMA is ECMA 262's \s, inside a class.
const spaceECMA = `\t\n\x{B}\f\r \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}`

// fromECMA writes a regular expression of ECMA 262 in Go's syntax, where the two spell or mean the same
// thing differently.
func fromECMA(text string) string {
	var b strings.Builder
	class := false
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '\\' || i+1 >= len(text) {
			switch {
			case c == '[' && class:
				b.WriteString(`\[`) // in Go "[:" may begin a class of POSIX
				continue
			case c == '[':
				class = true
			case c == ']':
				class = false
			case c == '.' && !class:
				b.WriteString(`[^\n\r\x{2028}\x{2029}]`)
				continue
			}
			b.WriteByte(c)
			continue
		}
		i++
		switch c = text[i]; {
		case c == 's' && class:
			b.WriteString(spaceECMA)
		case c == 's':
			b.WriteString("[" + spaceECMA + "]")
		case c == 'S' && !class:
			b.WriteString("[^" + spaceECMA + "]")
		case c == 'u' && i+4 < len(text) && hexDigits(text[i+1:i+5]):
			b.WriteString(`\x{` + text[i+1:i+5] + "}")
			i += 4
		case c == 'u' && strings.HasPrefix(text[i:], "u{"):
			b.WriteString(`\x`)
		case c == 'c' && i+1 < len(text):
			i++
			fmt.Fprintf(&b, `\x{%X}`, text[i]&31)
		case c == '0' && (i+1 >= len(text) || text[i+1] < '0' || text[i+1] > '9'):
			b.WriteString(`\x{0}`)
		case c == 'a' || c == 'Q' || c == 'E' || c == 'C' || c == 'A' || c == 'z' || c == 'Z' ||
			c == 'e' || c == 'h' || c == 'H':
			b.WriteByte(c) // letters that stand for themselves there
			if c == 'A' || c == 'Z' || c == 'z' {
				// These are anchors in other dialects, and not meant as their letters.
				s := b.String()
				b.Reset()
				b.WriteString(s[:len(s)-1] + map[byte]string{'A': `\A`, 'Z': `\z`, 'z': `\z`}[c])
			}
		case c == '_' || c >= 0x80:
			b.WriteByte(c)
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String()
}

func hexDigits(s string) bool {
	return strings.Trim(s, "0123456789abcdefABCDEF") == ""
}

// nfaNode of a nondeterministic automaton over characters.
type nfaNode struct {
	op     byte     // 's' split, 'c' character, 'b' begin of the text, 'e' its end, 'm' match
	to     [2]int32 // -1 = none
	ranges []rune   // pairs of bounds
}

type nfa struct {
	nodes []nfaNode
	depth int
	err   error
}

func (a *nfa) add(n nfaNode) int32 {
	if len(a.nodes) >= maxLangNodes {
		a.err = errLangSize
		return 0
	}
	a.nodes = append(a.nodes, n)
	return int32(len(a.nodes) - 1)
}

// expr adds re in front of next.
func (a *nfa) expr(re *syntax.Regexp, next int32) int32 {
	if a.depth++; a.depth > 1000 {
		a.err = errLang("is nested too deep")
	}
	defer func() { a.depth-- }()
	if a.err != nil {
		return next
	}
	switch re.Op {
	case syntax.OpEmptyMatch:
		return next
	case syntax.OpNoMatch:
		return a.add(nfaNode{op: 'c', to: [2]int32{next, -1}})
	case syntax.OpLiteral:
		for _, r := range slices.Backward(re.Rune) {
			bounds := []rune{r, r}
			if re.Flags&syntax.FoldCase != 0 {
				for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
					bounds = append(bounds, f, f)
				}
			}
			next = a.add(nfaNode{op: 'c', to: [2]int32{next, -1}, ranges: bounds})
		}
		return next
	case syntax.OpCharClass:
		return a.add(nfaNode{op: 'c', to: [2]int32{next, -1}, ranges: re.Rune})
	case syntax.OpAnyChar:
		return a.add(nfaNode{op: 'c', to: [2]int32{next, -1}, ranges: []rune{0, utf8.MaxRune}})
	case syntax.OpAnyCharNotNL:
		return a.add(nfaNode{op: 'c', to: [2]int32{next, -1}, ranges: []rune{0, 9, 11, utf8.MaxRune}})
	case syntax.OpCapture:
		return a.expr(re.Sub[0], next)
	case syntax.OpBeginText, syntax.OpBeginLine:
		return a.add(nfaNode{op: 'b', to: [2]int32{next, -1}})
	case syntax.OpEndText, syntax.OpEndLine:
		return a.add(nfaNode{op: 'e', to: [2]int32{next, -1}})
	case syntax.OpStar:
		return a.repeat(re.Sub[0], 0, -1, next)
	case syntax.OpPlus:
		return a.repeat(re.Sub[0], 1, -1, next)
	case syntax.OpQuest:
		return a.repeat(re.Sub[0], 0, 1, next)
	case syntax.OpRepeat:
		return a.repeat(re.Sub[0], re.Min, re.Max, next)
	case syntax.OpConcat:
		for _, x := range slices.Backward(re.Sub) {
			next = a.expr(x, next)
		}
		return next
	case syntax.OpAlternate:
		at := int32(-1)
		for _, x := range slices.Backward(re.Sub) {
			first := a.expr(x, next)
			if at < 0 {
				at = first
			} else {
				at = a.add(nfaNode{op: 's', to: [2]int32{first, at}})
			}
		}
		return at
	}
	a.err = errLang(fmt.Sprintf("%v is not supported here", re))
	return next
}

func (a *nfa) repeat(x *syntax.Regexp, least, most int, next int32) int32 {
	if most < 0 {
		loop := a.add(nfaNode{op: 's', to: [2]int32{-1, next}})
		first := a.expr(x, loop)
		if a.err != nil {
			return next
		}
		a.nodes[loop].to[0] = first
		next = loop
	}
	out := next
	for range most - least {
		next = a.add(nfaNode{op: 's', to: [2]int32{a.expr(x, next), out}})
	}
	for range least {
		next = a.expr(x, next)
	}
	return next
}

// regexLang is the language of the texts in which re is found. Cells of its table and nodes visited are added to cells.
func regexLang(re *syntax.Regexp, cells *int) (*dfa, error) {
	a := &nfa{}
	a.nodes = append(a.nodes, nfaNode{op: 'm', to: [2]int32{-1, -1}})
	first := a.expr(re, 0)
	// Anything may stand in front.
	loop := a.add(nfaNode{op: 's', to: [2]int32{first, -1}})
	any := a.add(nfaNode{op: 'c', to: [2]int32{loop, -1}, ranges: []rune{0, utf8.MaxRune}})
	if a.err != nil {
		return nil, a.err
	}
	a.nodes[loop].to[1] = any
	d := &dfa{cuts: a.cuts()}
	s := &subsets{nfa: a, dfa: d, over: a.intervals(d), mark: make([]int, len(a.nodes)), made: map[string]int32{}, all: -1}
	s.add([]int32{loop}, true)
	work := len(a.nodes)
	defer func() { *cells += work }()
	for n := 0; n < len(s.sets); n++ {
		if work += len(d.cuts) + len(s.sets[n]); n > 2*maxLangStates || work > 2*maxLangCells {
			return nil, errLangSize
		}
		d.next = append(d.next, s.row(n, &work))
	}
	return d.trimmed().minimal(), nil
}

// cuts are the first characters of the intervals within which no node tells characters apart, in order.
func (a *nfa) cuts() []rune {
	cuts := []rune{0}
	for _, n := range a.nodes {
		for i := 0; i+1 < len(n.ranges); i += 2 {
			cuts = append(cuts, n.ranges[i], n.ranges[i+1]+1)
		}
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	if cuts[len(cuts)-1] > utf8.MaxRune {
		cuts = cuts[:len(cuts)-1]
	}
	return cuts
}

// intervals returns, by node, the numbers of the intervals of d whose characters the node consumes.
func (a *nfa) intervals(d *dfa) [][]int32 {
	over := make([][]int32, len(a.nodes))
	for i, n := range a.nodes {
		for j := 0; j+1 < len(n.ranges); j += 2 {
			for k := d.interval(n.ranges[j]); k < len(d.cuts) && d.cuts[k] <= n.ranges[j+1]; k++ {
				over[i] = append(over[i], int32(k))
			}
		}
	}
	return over
}

// subsets makes a deterministic automaton whose states are sets of the nodes of another one.
type subsets struct {
	nfa  *nfa
	dfa  *dfa
	over [][]int32 // by node: intervals of its characters
	mark []int     // by node: the last closure that visited it
	// round counts closures.
	round   int
	made    map[string]int32 // states by their set
	sets    [][]int32        // by state: nodes that consume a character or wait for the end
	all     int32            // the state after a match, which accepts everything; -1 while there is none
	targets [][]int32        // of one row, kept for its memory
}

// closure follows the nodes that consume nothing. The list keeps nodes that consume a character, and those that wait
// for the end.
func (s *subsets) closure(from []int32, begin, end bool) (list []int32, matched bool) {
	s.round++
	stack := slices.Clone(from)
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if n < 0 || s.mark[n] == s.round {
			continue
		}
		s.mark[n] = s.round
		switch x := &s.nfa.nodes[n]; x.op {
		case 's':
			stack = append(stack, x.to[0], x.to[1])
		case 'b':
			if begin {
				stack = append(stack, x.to[0])
			}
		case 'e':
			if end {
				stack = append(stack, x.to[0])
			} else {
				list = append(list, n)
			}
		case 'm':
			matched = true
		case 'c':
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list, matched
}

// add returns the state that the nodes stand for, a new one when there is none yet. begin: at the text's start.
func (s *subsets) add(from []int32, begin bool) int32 {
	set, matched := s.closure(from, begin, false)
	if matched {
		if s.all < 0 {
			s.all = int32(len(s.sets))
			s.sets, s.dfa.final = append(s.sets, nil), append(s.dfa.final, true)
		}
		return s.all
	}
	b := make([]byte, 0, 4*len(set)+1)
	if begin {
		b = append(b, 1)
	}
	for _, n := range set {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	if n, ok := s.made[string(b)]; ok {
		return n
	}
	n := int32(len(s.sets))
	s.made[string(b)] = n
	_, final := s.closure(from, begin, true)
	s.sets, s.dfa.final = append(s.sets, set), append(s.dfa.final, final)
	return n
}

// row returns the states that follow state n, by interval. Nodes visited are added to work.
func (s *subsets) row(n int, work *int) []int32 {
	row := make([]int32, len(s.dfa.cuts))
	if s.targets == nil {
		s.targets = make([][]int32, len(row))
	}
	for k := range row {
		row[k] = -1
		s.targets[k] = s.targets[k][:0]
		if int32(n) == s.all {
			row[k] = s.all
		}
	}
	for _, m := range s.sets[n] {
		*work += len(s.over[m])
		for _, k := range s.over[m] {
			s.targets[k] = append(s.targets[k], s.nfa.nodes[m].to[0])
		}
	}
	for k, list := range s.targets {
		if len(list) > 0 {
			*work += len(list)
			row[k] = s.add(list, false)
		}
	}
	return row
}

// writeLang returns the body of a language: a rule for every state. class writes one character out of pairs of bounds.
func (c *schemaCompiler) writeLang(d *dfa, class func(bounds []rune) string, path string) string {
	names := make([]string, len(d.next))
	for n := range names {
		names[n] = c.w.fresh()
	}
	for n, row := range d.next {
		c.spend(1, path)
		// Characters by where they lead.
		bounds := map[int32][]rune{}
		var order []int32
		for k, to := range row {
			if to < 0 {
				continue
			}
			hi := rune(utf8.MaxRune)
			if k+1 < len(d.cuts) {
				hi = d.cuts[k+1] - 1
			}
			list := bounds[to]
			if list == nil {
				order = append(order, to)
			}
			if m := len(list); m > 0 && list[m-1]+1 == d.cuts[k] {
				list[m-1] = hi
			} else {
				list = append(list, d.cuts[k], hi)
			}
			bounds[to] = list
		}
		var parts []string
		for _, to := range order {
			parts = append(parts, class(bounds[to])+" "+names[to])
		}
		if d.final[n] {
			parts = append(parts, `""`)
		}
		c.w.Define(names[n], strings.Join(parts, " | "))
	}
	return names[0]
}
