package chattemplate

import (
	"math/big"
	"slices"
	"strconv"
)

// The grammar, weakest binding first: inline if, or, and, not, comparison, + -, ~, * / // %, **, sign, then postfix
// (attribute, item, call), filters and tests.

// expr reads one expression.
func (p *parser) expr() (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer p.leave()
	line := p.peek().line
	known := len(p.unknown)
	x, err := p.or()
	if err != nil {
		return nil, err
	}
	for n := 0; p.isName("if"); n++ {
		defer func() { p.unknown = p.unknown[:min(known, len(p.unknown))] }()
		if n > maxNesting {
			return nil, p.fail("nested too deeply")
		}
		p.pos++
		test, err := p.or()
		if err != nil {
			return nil, err
		}
		c := &condExpr{at: at{line}, test: test, yes: x}
		if p.takeName("else") {
			if c.no, err = p.expr(); err != nil {
				return nil, err
			}
		}
		x = c
	}
	return x, nil
}

// tupleExpr reads an expression or, without parentheses, a tuple. withCond is false where a following "if" is not part
// of the expression (the head of a loop).
func (p *parser) tupleExpr(withCond bool) (expr, error) {
	line := p.peek().line
	one := p.expr
	if !withCond {
		one = func() (expr, error) {
			if err := p.enter(); err != nil {
				return nil, err
			}
			defer p.leave()
			return p.or()
		}
	}
	x, err := one()
	if err != nil || !p.isOp(",") {
		return x, err
	}
	t := &listExpr{at: at{line}, items: []expr{x}, tuple: true}
	for p.takeOp(",") {
		if k := p.peek().kind; k == tokVarEnd || k == tokBlockEnd || p.isOp(")") {
			break
		}
		if x, err = one(); err != nil {
			return nil, err
		}
		t.items = append(t.items, x)
	}
	return t, nil
}

// chain reads left-associative operators: operand (op operand)*.
func (p *parser) chain(operand func() (expr, error), op func() (string, bool)) (expr, error) {
	l, err := operand()
	if err != nil {
		return nil, err
	}
	for n := 0; ; n++ {
		line := p.peek().line
		name, ok := op()
		if !ok {
			return l, nil
		}
		if n > maxChain {
			return nil, p.fail("expression is too long")
		}
		r, err := operand()
		if err != nil {
			return nil, err
		}
		l = &binaryExpr{at{line}, name, l, r}
	}
}

func (p *parser) opIn(ops ...string) func() (string, bool) {
	return func() (string, bool) {
		if t := p.peek(); t.kind == tokOp && slices.Contains(ops, t.text) {
			p.pos++
			return t.text, true
		}
		return "", false
	}
}

func (p *parser) word(w string) func() (string, bool) {
	return func() (string, bool) { return w, p.takeName(w) }
}

func (p *parser) or() (expr, error)  { return p.chain(p.and, p.word("or")) }
func (p *parser) and() (expr, error) { return p.chain(p.not, p.word("and")) }

func (p *parser) not() (expr, error) {
	line := p.peek().line
	if p.isName("not") {
		p.pos++
		if err := p.enter(); err != nil {
			return nil, err
		}
		defer p.leave()
		x, err := p.not()
		return &unaryExpr{at{line}, "not", x}, err
	}
	return p.compare()
}

func (p *parser) compare() (expr, error) {
	line := p.peek().line
	x, err := p.sum()
	if err != nil {
		return nil, err
	}
	c := &compareExpr{at: at{line}, first: x}
	op := p.opIn("==", "!=", "<", "<=", ">", ">=")
	for {
		name, ok := op()
		if !ok {
			switch {
			case p.takeName("in"):
				name = "in"
			case p.isName("not") && p.peek2().kind == tokName && p.peek2().text == "in":
				p.pos += 2
				name = "not in"
			case len(c.ops) == 0:
				return x, nil
			default:
				return c, nil
			}
		}
		r, err := p.sum()
		if err != nil {
			return nil, err
		}
		c.ops, c.rest = append(c.ops, name), append(c.rest, r)
	}
}

func (p *parser) sum() (expr, error) { return p.chain(p.concat, p.opIn("+", "-")) }

func (p *parser) concat() (expr, error) {
	line := p.peek().line
	x, err := p.product()
	if err != nil || !p.isOp("~") {
		return x, err
	}
	c := &concatExpr{at{line}, []expr{x}}
	for p.takeOp("~") {
		if x, err = p.product(); err != nil {
			return nil, err
		}
		c.parts = append(c.parts, x)
	}
	return c, nil
}

func (p *parser) product() (expr, error) { return p.chain(p.power, p.opIn("*", "/", "//", "%")) }

func (p *parser) power() (expr, error) {
	return p.chain(func() (expr, error) { return p.unary(true) }, p.opIn("**"))
}

func (p *parser) unary(filters bool) (expr, error) {
	t := p.peek()
	var x expr
	var err error
	if t.kind == tokOp && (t.text == "-" || t.text == "+") {
		p.pos++
		if err := p.enter(); err != nil {
			return nil, err
		}
		x, err = p.unary(false)
		p.leave()
		x = &unaryExpr{at{t.line}, t.text, x}
	} else if x, err = p.primary(); err == nil {
		x, err = p.postfix(x)
	}
	if err != nil || !filters {
		return x, err
	}
	return p.filtersAndTests(x)
}

func (p *parser) primary() (expr, error) {
	t := p.next()
	pos := at{t.line}
	switch t.kind {
	case tokName:
		switch t.text {
		case "true", "True":
			return &constExpr{pos, true}, nil
		case "false", "False":
			return &constExpr{pos, false}, nil
		case "none", "None":
			return &constExpr{pos, nil}, nil
		}
		if p.used != nil {
			p.used[t.text] = true
		}
		return &nameExpr{pos, t.text}, nil
	case tokString:
		s := t.text
		for p.peek().kind == tokString { // adjacent strings are one
			s += p.next().text
		}
		return &constExpr{pos, Trusted(s)}, nil
	case tokInt:
		if n, err := strconv.ParseInt(t.text, 10, 64); err == nil {
			return &constExpr{pos, n}, nil
		}
		n, ok := new(big.Int), len(t.text) < 1000
		if ok {
			n, ok = n.SetString(t.text, 10)
		}
		if !ok {
			return nil, errorAt(t.line, "bad integer")
		}
		return &constExpr{pos, n}, nil
	case tokFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			return nil, errorAt(t.line, "bad number %q", t.text)
		}
		return &constExpr{pos, f}, nil
	case tokOp:
		switch t.text {
		case "(":
			if p.takeOp(")") {
				return &listExpr{at: pos, tuple: true}, nil
			}
			x, err := p.tupleExpr(true)
			if err != nil {
				return nil, err
			}
			return x, p.needOp(")")
		case "[":
			items, err := p.exprsUntil("]")
			return &listExpr{at: pos, items: items}, err
		case "{":
			return p.dict(pos)
		}
	}
	return nil, errorAt(t.line, "unexpected %s", t.describe())
}

func (p *parser) exprsUntil(end string) ([]expr, error) {
	var out []expr
	for !p.takeOp(end) {
		if len(out) > 0 {
			if err := p.needOp(","); err != nil {
				return nil, err
			}
			if p.takeOp(end) {
				break
			}
		}
		x, err := p.expr()
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}

func (p *parser) dict(pos at) (expr, error) {
	d := &dictExpr{at: pos}
	for !p.takeOp("}") {
		if len(d.keys) > 0 {
			if err := p.needOp(","); err != nil {
				return nil, err
			}
			if p.takeOp("}") {
				break
			}
		}
		k, err := p.expr()
		if err != nil {
			return nil, err
		}
		if err := p.needOp(":"); err != nil {
			return nil, err
		}
		v, err := p.expr()
		if err != nil {
			return nil, err
		}
		d.keys, d.vals = append(d.keys, k), append(d.vals, v)
	}
	return d, nil
}

// postfix reads attributes, items and calls.
func (p *parser) postfix(x expr) (expr, error) {
	for n := 0; ; n++ {
		if n > maxChain {
			return nil, p.fail("expression is too long")
		}
		t := p.peek()
		if t.kind != tokOp {
			return x, nil
		}
		var err error
		switch t.text {
		case ".":
			p.pos++
			key := p.next()
			switch key.kind {
			case tokName:
				x = &attrExpr{at{t.line}, x, key.text}
			case tokInt:
				i, err := strconv.ParseInt(key.text, 10, 64)
				if err != nil {
					return nil, errorAt(key.line, "bad index")
				}
				x = &itemExpr{at{t.line}, x, &constExpr{at{key.line}, i}}
			default:
				return nil, errorAt(key.line, "expected a name or a number after '.'")
			}
		case "[":
			p.pos++
			x, err = p.subscript(at{t.line}, x)
		case "(":
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) subscript(pos at, obj expr) (expr, error) {
	var parts [3]expr
	colons := 0
	var keys []expr // of a tuple
	tuple := p.isOp("]")
	for !p.isOp("]") {
		if colons == 0 && parts[0] != nil && p.takeOp(",") {
			keys, parts[0], tuple = append(keys, parts[0]), nil, true
			continue
		}
		if p.takeOp(":") {
			if colons++; colons > 2 {
				return nil, p.fail("too many ':' in a slice")
			}
			continue
		}
		x, err := p.expr()
		if err != nil {
			return nil, err
		}
		parts[colons] = x
		if !p.isOp("]") && !p.isOp(":") && (colons > 0 || !p.isOp(",")) {
			return nil, p.fail("expected ']', got %s", p.peek().describe())
		}
	}
	p.pos++
	if tuple {
		if colons > 0 {
			return nil, errorAt(pos.line, "slices of tuples are not supported")
		}
		if parts[0] != nil {
			keys = append(keys, parts[0])
		}
		return &itemExpr{pos, obj, &listExpr{at: pos, items: keys, tuple: true}}, nil
	}
	if colons > 0 {
		return &sliceExpr{pos, obj, parts[0], parts[1], parts[2]}, nil
	}
	return &itemExpr{pos, obj, parts[0]}, nil
}

func (p *parser) call(fn expr) (expr, error) {
	line := p.peek().line
	args, err := p.args()
	return &callExpr{at{line}, fn, args}, err
}

func (p *parser) args() (argList, error) {
	var a argList
	if err := p.needOp("("); err != nil {
		return a, err
	}
	for first := true; !p.takeOp(")"); first = false {
		if !first {
			if err := p.needOp(","); err != nil {
				return a, err
			}
			if p.takeOp(")") {
				break
			}
		}
		var err error
		switch t := p.peek(); {
		case p.takeOp("**"):
			a.dstar, err = p.expr()
		case p.takeOp("*"):
			a.star, err = p.expr()
		case t.kind == tokName && p.peek2().kind == tokOp && p.peek2().text == "=":
			p.pos += 2
			var x expr
			x, err = p.expr()
			a.names, a.named = append(a.names, t.text), append(a.named, x)
		default:
			if len(a.named) > 0 {
				return a, p.fail("positional argument after a named one")
			}
			var x expr
			x, err = p.expr()
			a.pos = append(a.pos, x)
		}
		if err != nil {
			return a, err
		}
	}
	return a, nil
}

// filtersAndTests reads "| filter" and "is test", and calls of their results.
func (p *parser) filtersAndTests(x expr) (expr, error) {
	for n := 0; ; n++ {
		if n > maxChain {
			return nil, p.fail("expression is too long")
		}
		var err error
		switch {
		case p.takeOp("|"):
			x, err = p.filter(x)
		case p.isName("is"):
			x, err = p.test(x)
		case p.isOp("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) filter(obj expr) (*filterExpr, error) {
	t, err := p.need(tokName)
	if err != nil {
		return nil, err
	}
	f := &filterExpr{at: at{t.line}, obj: obj, name: t.text}
	if f.fn = filters()[t.text]; f.fn == nil {
		p.unknown = append(p.unknown, errorAt(t.line, "no filter named %q", t.text))
	}
	if p.isOp("(") {
		f.args, err = p.args()
	}
	return f, err
}

func (p *parser) test(obj expr) (expr, error) {
	p.pos++ // is
	x := &testExpr{at: at{p.peek().line}, obj: obj, negate: p.takeName("not")}
	t := p.next()
	x.name = t.text
	if t.kind != tokName && t.kind != tokOp {
		return nil, errorAt(t.line, "expected a test, got %s", t.describe())
	}
	if x.fn = tests()[t.text]; x.fn == nil {
		p.unknown = append(p.unknown, errorAt(t.line, "no test named %q", t.text))
	}
	var err error
	switch a := p.peek(); {
	case p.isOp("("):
		x.args, err = p.args()
	case a.kind == tokName && !slices.Contains([]string{"else", "or", "and", "is", "if", "not", "in", "recursive"},
		a.text),
		a.kind == tokString, a.kind == tokInt, a.kind == tokFloat, p.isOp("["), p.isOp("{"):
		var arg expr
		if arg, err = p.primary(); err == nil {
			if arg, err = p.postfix(arg); err == nil {
				x.args.pos = []expr{arg}
			}
		}
	}
	return x, err
}
