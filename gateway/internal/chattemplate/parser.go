package chattemplate

import (
	"slices"
)

// Limits of the source. Nesting is bounded because parser and interpreter recurse.
const (
	maxSourceBytes = 1 << 20
	maxNesting     = 150
	maxChain       = 2000 // operators, filters or subscripts in a row
)

type parser struct {
	toks  []token
	pos   int
	depth int
	loops int // open for loops, for break and continue
	// used collects the names that the body of a macro reads.
	used map[string]bool
	// unknown are the uses of filters and tests that do not exist, outside of branches that may not be taken: those are
	// reported when they run, as the reference does.
	unknown []error
}

func (p *parser) peek() token  { return p.toks[p.pos] }
func (p *parser) peek2() token { return p.toks[min(p.pos+1, len(p.toks)-1)] }

func (p *parser) next() token {
	t := p.toks[p.pos]
	if t.kind != tokEOF {
		p.pos++
	}
	return t
}

func (p *parser) fail(format string, args ...any) error {
	return errorAt(p.peek().line, format, args...)
}

func (p *parser) isOp(op string) bool {
	t := p.peek()
	return t.kind == tokOp && t.text == op
}

func (p *parser) isName(name string) bool {
	t := p.peek()
	return t.kind == tokName && t.text == name
}

func (p *parser) takeOp(op string) bool {
	if p.isOp(op) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) takeName(name string) bool {
	if p.isName(name) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) needOp(op string) error {
	if !p.takeOp(op) {
		return p.fail("expected %q, got %s", op, p.peek().describe())
	}
	return nil
}

func (p *parser) need(k tokenKind) (token, error) {
	if p.peek().kind != k {
		return token{}, p.fail("expected %s, got %s", token{kind: k}.describe(), p.peek().describe())
	}
	return p.next(), nil
}

// describe names a token for messages.
func (t token) describe() string {
	switch t.kind {
	case tokData:
		return "template text"
	case tokBlockBegin:
		return "begin of statement block"
	case tokBlockEnd:
		return "end of statement block"
	case tokVarBegin:
		return "begin of print statement"
	case tokVarEnd:
		return "end of print statement"
	case tokString:
		return "a string"
	case tokEOF:
		return "end of template"
	case tokName:
		if t.text == "" {
			return "a name"
		}
	}
	return "'" + t.text + "'"
}

func (p *parser) enter() error {
	if p.depth++; p.depth > maxNesting {
		return p.fail("nested too deeply")
	}
	return nil
}

func (p *parser) leave() { p.depth-- }

// body reads statements up to a tag whose first word is in ends, and leaves that tag's name as the next token. With no
// ends it reads to the end of the template.
func (p *parser) body(ends ...string) ([]stmt, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	var out []stmt
	for {
		t := p.next()
		pos := at{t.line}
		switch t.kind {
		case tokEOF:
			if len(ends) > 0 {
				return nil, p.fail("unexpected end of template, expected %q", ends[len(ends)-1])
			}
			return out, nil
		case tokData:
			if t.text != "" {
				out = append(out, &dataStmt{pos, t.text})
			}
		case tokVarBegin:
			x, err := p.tupleExpr(true)
			if err != nil {
				return nil, err
			}
			if _, err := p.need(tokVarEnd); err != nil {
				return nil, err
			}
			out = append(out, &printStmt{pos, x})
		case tokBlockBegin:
			if w := p.peek(); w.kind == tokName && slices.Contains(ends, w.text) {
				return out, nil
			}
			s, err := p.statement()
			if err != nil {
				return nil, err
			}
			out = append(out, s)
		default:
			return nil, p.fail("unexpected %s", t.describe())
		}
	}
}

// block reads the end of the opening tag, the body and the closing tag.
func (p *parser) block(end string) ([]stmt, error) {
	if _, err := p.need(tokBlockEnd); err != nil {
		return nil, err
	}
	body, err := p.body(end)
	if err != nil {
		return nil, err
	}
	p.pos++ // the closing word
	_, err = p.need(tokBlockEnd)
	return body, err
}

// statement reads what stands after {%.
func (p *parser) statement() (stmt, error) {
	t, err := p.need(tokName)
	if err != nil {
		return nil, err
	}
	pos := at{t.line}
	switch t.text {
	case "if":
		return p.ifStatement(pos)
	case "for":
		return p.forStatement(pos)
	case "set":
		return p.setStatement(pos)
	case "with":
		return p.withStatement(pos)
	case "macro":
		name, err := p.need(tokName)
		if err != nil {
			return nil, err
		}
		m, err := p.macroDef(name.text, "endmacro")
		return &macroStmt{at: pos, name: name.text, macro: m}, err
	case "call":
		return p.callStatement(pos)
	case "filter":
		fs, err := p.filterNames()
		if err != nil {
			return nil, err
		}
		body, err := p.block("endfilter")
		return &filterStmt{pos, fs, body}, err
	case "generation":
		body, err := p.block("endgeneration")
		return &scopeStmt{pos, body}, err
	case "break", "continue":
		if p.loops == 0 {
			return nil, errorAt(t.line, "%s outside of a loop", t.text)
		}
		j := jumpBreak
		if t.text == "continue" {
			j = jumpContinue
		}
		_, err := p.need(tokBlockEnd)
		return &jumpStmt{pos, j}, err
	}
	return nil, errorAt(t.line, "unknown or unsupported tag %q", t.text)
}

func (p *parser) ifStatement(pos at) (stmt, error) {
	root := &ifStmt{at: pos}
	cur := root
	known := len(p.unknown)
	defer func() {
		// The first condition always runs, what follows it may not.
		p.unknown = p.unknown[:min(known, len(p.unknown))]
	}()
	for {
		var err error
		if cur.test, err = p.tupleExpr(false); err != nil {
			return nil, err
		}
		if cur == root {
			known = len(p.unknown)
		}
		if _, err := p.need(tokBlockEnd); err != nil {
			return nil, err
		}
		if cur.then, err = p.body("elif", "else", "endif"); err != nil {
			return nil, err
		}
		word := p.next()
		switch word.text {
		case "elif":
			nested := &ifStmt{at: at{word.line}}
			cur.alt = []stmt{nested}
			cur = nested
			if p.depth++; p.depth > maxNesting { // an elif is nested one deeper when it runs
				return nil, p.fail("nested too deeply")
			}
			defer p.leave()
			continue
		case "else":
			if cur.alt, err = p.block("endif"); err != nil {
				return nil, err
			}
			return root, nil
		}
		_, err = p.need(tokBlockEnd)
		return root, err
	}
}

func (p *parser) forStatement(pos at) (stmt, error) {
	s := &forStmt{at: pos}
	var err error
	if s.target, err = p.target(false); err != nil {
		return nil, err
	}
	if !p.takeName("in") {
		return nil, p.fail("expected 'in', got %s", p.peek().describe())
	}
	if s.iter, err = p.tupleExpr(false); err != nil {
		return nil, err
	}
	if p.takeName("if") {
		if s.cond, err = p.expr(); err != nil {
			return nil, err
		}
	}
	if p.isName("recursive") {
		return nil, p.fail("recursive loops are not supported")
	}
	if _, err := p.need(tokBlockEnd); err != nil {
		return nil, err
	}
	p.loops++
	s.body, err = p.body("else", "endfor")
	p.loops--
	if err != nil {
		return nil, err
	}
	if p.next().text == "else" {
		s.alt, err = p.block("endfor")
		return s, err
	}
	_, err = p.need(tokBlockEnd)
	return s, err
}

func (p *parser) setStatement(pos at) (stmt, error) {
	t, err := p.target(true)
	if err != nil {
		return nil, err
	}
	if p.takeOp("=") {
		x, err := p.tupleExpr(true)
		if err != nil {
			return nil, err
		}
		_, err = p.need(tokBlockEnd)
		return &setStmt{pos, t, x}, err
	}
	s := &setBlockStmt{at: pos, target: t}
	if p.takeOp("|") {
		if s.filters, err = p.filterNames(); err != nil {
			return nil, err
		}
	}
	s.body, err = p.block("endset")
	return s, err
}

func (p *parser) withStatement(pos at) (stmt, error) {
	s := &withStmt{at: pos}
	for p.peek().kind != tokBlockEnd {
		if len(s.targets) > 0 {
			if err := p.needOp(","); err != nil {
				return nil, err
			}
		}
		t, err := p.target(false)
		if err != nil {
			return nil, err
		}
		if err := p.needOp("="); err != nil {
			return nil, err
		}
		x, err := p.expr()
		if err != nil {
			return nil, err
		}
		s.targets, s.vals = append(s.targets, t), append(s.vals, x)
	}
	var err error
	s.body, err = p.block("endwith")
	return s, err
}

// target reads what is assigned to. A namespace attribute is allowed in set only.
func (p *parser) target(attr bool) (target, error) {
	var ts []target
	tuple := false
	for {
		if p.takeOp("(") {
			if err := p.enter(); err != nil {
				return target{}, err
			}
			t, err := p.target(false)
			p.leave()
			if err != nil {
				return target{}, err
			}
			if err := p.needOp(")"); err != nil {
				return target{}, err
			}
			ts = append(ts, t)
		} else {
			name, err := p.need(tokName)
			if err != nil {
				return target{}, err
			}
			if slices.Contains([]string{"true", "false", "none", "True", "False", "None"}, name.text) {
				return target{}, errorAt(name.line, "cannot assign to %q", name.text)
			}
			t := target{name: name.text}
			if attr && p.takeOp(".") {
				a, err := p.need(tokName)
				if err != nil {
					return target{}, err
				}
				t.attr = a.text
			}
			ts = append(ts, t)
		}
		if !p.takeOp(",") {
			break
		}
		tuple = true
		if p.isName("in") || p.isOp("=") || p.isOp(")") {
			break
		}
	}
	if !tuple {
		return ts[0], nil
	}
	return target{tuple: ts}, nil
}

// macroDef reads parameters, body and end of a macro.
func (p *parser) macroDef(name, end string) (*macroDef, error) {
	m := &macroDef{name: name}
	if !p.isOp("(") {
		return nil, p.fail("expected '(', got %s", p.peek().describe())
	}
	if err := p.params(m); err != nil {
		return nil, err
	}
	return m, p.macroBody(m, end)
}

// params reads the parameters of a macro or call block in parentheses, if there are any.
func (p *parser) params(m *macroDef) error {
	if !p.takeOp("(") {
		return nil
	}
	for !p.takeOp(")") {
		if len(m.params) > 0 {
			if err := p.needOp(","); err != nil {
				return err
			}
		}
		param, err := p.need(tokName)
		if err != nil {
			return err
		}
		if slices.Contains(m.params, param.text) {
			return errorAt(param.line, "parameter %q is listed twice", param.text)
		}
		m.params = append(m.params, param.text)
		if p.takeOp("=") {
			d, err := p.expr()
			if err != nil {
				return err
			}
			m.defaults = append(m.defaults, d)
		} else if len(m.defaults) > 0 {
			return errorAt(param.line, "parameter %q without default follows one with", param.text)
		}
	}
	return nil
}

// macroBody reads the body; loops outside of the macro do not count inside.
func (p *parser) macroBody(m *macroDef, end string) error {
	loops, used := p.loops, p.used
	p.loops, p.used = 0, map[string]bool{}
	var err error
	m.body, err = p.block(end)
	m.extraPos, m.extraNamed = p.used["varargs"], p.used["kwargs"]
	p.loops, p.used = loops, used
	return err
}

func (p *parser) callStatement(pos at) (stmt, error) {
	m := &macroDef{name: "caller"}
	if err := p.params(m); err != nil {
		return nil, err
	}
	x, err := p.expr()
	if err != nil {
		return nil, err
	}
	call, ok := x.(*callExpr)
	if !ok {
		return nil, p.fail("expected a call")
	}
	if err := p.macroBody(m, "endcall"); err != nil {
		return nil, err
	}
	return &callStmt{pos, call, m}, nil
}

// filterNames reads "name(args) | name …" of filter and set blocks.
func (p *parser) filterNames() ([]*filterExpr, error) {
	var out []*filterExpr
	for {
		f, err := p.filter(nil)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
		if len(out) > maxChain {
			return nil, p.fail("too many filters")
		}
		if !p.takeOp("|") {
			return out, nil
		}
	}
}
