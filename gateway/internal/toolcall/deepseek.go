package toolcall

// Marks of DeepSeek R1 and its distillations.
const (
	openDeepSeek  = "<｜tool▁calls▁begin｜>"
	closeDeepSeek = "<｜tool▁calls▁end｜>"
	beginDeepSeek = "<｜tool▁call▁begin｜>"
	endDeepSeek   = "<｜tool▁call▁end｜>"
	sepDeepSeek   = "<｜tool▁sep｜>"
)

// DeepSeekMarks are tokens of their own in DeepSeek's vocabularies, often control tokens.
var DeepSeekMarks = []string{openDeepSeek, closeDeepSeek, beginDeepSeek, endDeepSeek, sepDeepSeek}

type deepSeekState uint8

const (
	deepSeekNext     deepSeekState = iota // before the mark that opens a call, or the one that closes the region
	deepSeekKind                          // before the kind of tool, which is "function", and the separator
	deepSeekName                          // in the name, which ends with its line
	deepSeekFence                         // before the code fence
	deepSeekGap                           // before the arguments
	deepSeekArgs                          // in the arguments, a JSON object
	deepSeekFenceEnd                      // after the arguments
	deepSeekEnd                           // after the fence
)

// deepSeek reads F10.
type deepSeek struct {
	p     *Parser
	state deepSeekState
	lit   expect
	name  []byte
	scan  scanner
	odd   int // bytes that did not fit outside of marks
}

func newDeepSeek(p *Parser) *deepSeek {
	d := &deepSeek{p: p}
	d.enter(deepSeekNext)
	return d
}

// enter changes the state.
func (d *deepSeek) enter(s deepSeekState) {
	d.state = s
	switch s {
	case deepSeekNext:
		d.lit = expecting(beginDeepSeek, closeDeepSeek)
	case deepSeekKind:
		d.lit = expecting("function" + sepDeepSeek)
	case deepSeekName:
		d.name = d.name[:0]
	case deepSeekFence:
		d.lit = expecting("```json")
	case deepSeekArgs:
		d.scan = scanner{}
	case deepSeekFenceEnd:
		d.lit = expecting("```")
	case deepSeekEnd:
		d.lit = expecting(endDeepSeek)
	}
}

// push implements machine.
func (d *deepSeek) push(c byte) verdict {
	switch d.state {
	case deepSeekName:
		return d.inName(c)
	case deepSeekGap:
		if isSpace(c) {
			return more
		}
		if c != '{' {
			return d.reject()
		}
		d.enter(deepSeekArgs)
		return d.inArgs(c)
	case deepSeekArgs:
		return d.inArgs(c)
	}
	mark, v := d.lit.push(c)
	if v != over {
		return v
	}
	switch mark {
	case closeDeepSeek:
		return over
	case endDeepSeek:
		d.p.end()
		d.enter(deepSeekNext)
	default:
		d.enter(d.state + 1)
	}
	return more
}

// reject refuses the present byte outside of a mark.
func (d *deepSeek) reject() verdict {
	d.odd = 1
	return bad
}

func (d *deepSeek) inName(c byte) verdict {
	switch {
	case isName(c) && len(d.name) < maxName:
		d.name = append(d.name, c)
	case c == '\n' && len(d.name) > 0:
		d.p.announce(string(d.name), DeepSeek)
		d.enter(deepSeekFence)
	default:
		return d.reject()
	}
	return more
}

func (d *deepSeek) inArgs(c byte) verdict {
	v := d.scan.push(c)
	d.hand()
	switch v {
	case bad:
		return d.reject()
	case over:
		d.enter(deepSeekFenceEnd)
	}
	return more
}

// hand passes on what was read of the arguments.
func (d *deepSeek) hand() {
	b := d.scan.take()
	if d.p.call != nil {
		d.p.fragment = append(d.p.fragment, b...)
	}
}

// pending implements machine.
func (d *deepSeek) pending() int {
	switch d.state {
	case deepSeekName, deepSeekGap, deepSeekArgs:
		return d.odd
	}
	return len(d.lit.buf)
}

// ending implements machine.
func (d *deepSeek) ending() ending {
	if d.state == deepSeekFenceEnd || d.state == deepSeekEnd {
		return endOptional
	}
	return endOpen
}

// cut implements machine.
func (d *deepSeek) cut() {
	if d.state == deepSeekArgs {
		d.scan.cut()
		d.hand()
	}
}

// repair implements machine.
func (d *deepSeek) repair() {
	switch d.state {
	case deepSeekFence, deepSeekGap:
		d.p.closeObject() // without members
	case deepSeekArgs:
		d.scan.repair()
		d.hand()
	}
}
