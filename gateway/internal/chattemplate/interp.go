package chattemplate

import (
	"errors"
	"fmt"
)

// jump is what ends a statement list early.
type jump uint8

const (
	jumpNone jump = iota
	jumpBreak
	jumpContinue
)

// maxEvalDepth bounds the recursion of the interpreter itself, over macros, statements and expressions together.
const maxEvalDepth = 10_000

// loopSteps is the price of one loop iteration: a new scope costs about as much as this many small expressions.
const loopSteps = 10

// frame is a scope: the template, a macro call, a loop iteration. Reading looks outward, writing stays inside.
type frame struct {
	vars   map[string]Value
	parent *frame
}

func (f *frame) lookup(name string) (Value, bool) {
	for ; f != nil; f = f.parent {
		if v, ok := f.vars[name]; ok {
			return v, true
		}
	}
	return nil, false
}

// interp is one rendering.
type interp struct {
	t         *Template
	out       *strBuilder
	frame     *frame
	steps     int // left
	depth     int // of macro calls
	evalDepth int
	maxBytes  int
	maxDepth  int
	room      int // bytes left of what the rendering may make
}

func newInterp(t *Template) *interp {
	or := func(n, def int) int {
		if n > 0 {
			return n
		}
		return def
	}
	return &interp{
		t:        t,
		steps:    or(t.Limits.Steps, defaultSteps),
		maxBytes: or(t.Limits.OutputBytes, defaultOutputBytes),
		maxDepth: or(t.Limits.Depth, defaultDepth),
		room:     or(t.Limits.MemoryBytes, defaultMemoryBytes),
	}
}

// grow raises the default limits by the size of the variables: a long conversation takes more than a short one.
func (in *interp) grow(vars *Dict) {
	if vars == nil {
		return
	}
	visits := maxSteps // shared values are counted each time: bounded, so that they cannot be exponentially long to walk
	size := 0
	var walk func(v Value)
	walk = func(v Value) {
		if visits--; visits < 0 {
			return
		}
		switch x := v.(type) {
		case Str:
			size += len(x.s)
		case *List:
			for _, item := range x.items {
				walk(item)
			}
		case *Dict:
			for i := range x.keys {
				walk(x.keys[i])
				walk(x.vals[i])
			}
		}
		size++
	}
	walk(vars)
	if in.t.Limits.Steps == 0 {
		in.steps = min(in.steps+stepsPerByte*size, maxSteps)
	}
	if in.t.Limits.MemoryBytes == 0 {
		in.room += memoryPerByte * size
	}
}

// use takes n bytes of what the rendering may make.
func (in *interp) use(n int) error {
	if in.room -= n; in.room < 0 {
		return errors.New("template takes too much memory")
	}
	return nil
}

// made takes the bytes of a value that was just made, without those of its items.
func (in *interp) made(v Value) error {
	switch x := v.(type) {
	case Str:
		return in.use(len(x.s) + spanBytes*len(x.user))
	case *List:
		return in.use(itemBytes * len(x.items))
	case *Dict:
		return in.use(pairBytes * len(x.keys))
	}
	return nil
}

// charge takes n steps and checks the size of a string that exists or is about to.
func (in *interp) charge(n, bytes int) error {
	if bytes > in.maxBytes {
		return fmt.Errorf("text of more than %d bytes", in.maxBytes)
	}
	if bytes > in.room {
		return errors.New("template takes too much memory")
	}
	if in.steps -= n; in.steps < 0 {
		return errors.New("template takes too many steps")
	}
	return nil
}

// text charges for handling a string of n bytes.
func (in *interp) text(n int) error { return in.charge(1+n/64, n) }

// push enters a scope and gives the function that leaves it.
func (in *interp) push(parent *frame) func() {
	old := in.frame
	in.frame = &frame{vars: map[string]Value{}, parent: parent}
	return func() { in.frame = old }
}

// atLine gives an error that has no line the line of a node.
func atLine(err error, n interface{ where() int }) error {
	var e *Error
	if errors.As(err, &e) {
		if e.Line == 0 {
			e.Line = n.where()
		}
		return e
	}
	return &Error{Line: n.where(), Msg: err.Error()}
}

func (in *interp) exec(body []stmt) (jump, error) {
	for _, s := range body {
		if err := in.charge(1, 0); err != nil {
			return jumpNone, atLine(err, s)
		}
		j, err := in.stmt(s)
		if err != nil {
			return jumpNone, atLine(err, s)
		}
		if j != jumpNone {
			return j, nil
		}
	}
	return jumpNone, nil
}

func (in *interp) stmt(s stmt) (jump, error) {
	if in.evalDepth++; in.evalDepth > maxEvalDepth {
		return jumpNone, errTooDeep
	}
	defer func() { in.evalDepth-- }()
	switch s := s.(type) {
	case *dataStmt:
		return jumpNone, in.print(Trusted(s.text))
	case *printStmt:
		v, err := in.eval(s.x)
		if err != nil {
			return jumpNone, err
		}
		return jumpNone, in.printValue(v)
	case *ifStmt:
		v, err := in.eval(s.test)
		if err != nil {
			return jumpNone, err
		}
		if truth(v) {
			return in.exec(s.then)
		}
		return in.exec(s.alt)
	case *forStmt:
		return in.forLoop(s)
	case *setStmt:
		v, err := in.eval(s.x)
		if err != nil {
			return jumpNone, err
		}
		return jumpNone, in.assign(s.target, v)
	case *setBlockStmt:
		v, err := in.capture(s.body, s.filters)
		if err != nil {
			return jumpNone, err
		}
		return jumpNone, in.assign(s.target, v)
	case *withStmt:
		return in.with(s)
	case *macroStmt:
		in.frame.vars[s.name] = in.macro(s.macro)
	case *callStmt:
		return jumpNone, in.callBlock(s)
	case *filterStmt:
		v, err := in.capture(s.body, s.filters)
		if err != nil {
			return jumpNone, err
		}
		return jumpNone, in.printValue(v)
	case *scopeStmt:
		defer in.push(in.frame)()
		return in.exec(s.body)
	case *jumpStmt:
		return s.jump, nil
	}
	return jumpNone, nil
}

func (in *interp) printValue(v Value) error {
	text, err := in.toStr(v)
	if err != nil {
		return err
	}
	return in.print(text)
}

func (in *interp) print(s Str) error {
	if err := in.charge(1+len(s.s)/64, 0); err != nil {
		return err
	}
	if len(in.out.b)+len(s.s) > in.maxBytes {
		return fmt.Errorf("text of more than %d bytes", in.maxBytes)
	}
	in.out.add(s)
	return in.made(s)
}

// capture runs a body in its own scope and gives what it prints, through filters.
func (in *interp) capture(body []stmt, fs []*filterExpr) (Value, error) {
	out := in.out
	in.out = &strBuilder{}
	leave := in.push(in.frame)
	_, err := in.exec(body)
	leave()
	text := in.out.str()
	in.out = out
	if err == nil {
		err = in.made(text)
	}
	if err != nil {
		return nil, err
	}
	var v Value = text
	for _, f := range fs {
		if v, err = in.applyFilter(f, v); err != nil {
			return nil, atLine(err, f)
		}
	}
	return v, nil
}

func (in *interp) with(s *withStmt) (jump, error) {
	vals := make([]Value, len(s.vals))
	for i, x := range s.vals {
		v, err := in.eval(x)
		if err != nil {
			return jumpNone, err
		}
		vals[i] = v
	}
	defer in.push(in.frame)()
	for i, t := range s.targets {
		if err := in.assign(t, vals[i]); err != nil {
			return jumpNone, err
		}
	}
	return in.exec(s.body)
}

// assign stores a value in the current scope, in a namespace, or in several places.
func (in *interp) assign(t target, v Value) error {
	switch {
	case t.tuple != nil:
		items, err := in.iterate(v)
		if err != nil {
			return err
		}
		if len(items) != len(t.tuple) {
			return fmt.Errorf("cannot unpack %d values into %d names", len(items), len(t.tuple))
		}
		for i, sub := range t.tuple {
			if err := in.assign(sub, items[i]); err != nil {
				return err
			}
		}
	case t.attr != "":
		obj, _ := in.frame.lookup(t.name)
		ns, ok := obj.(*namespace)
		if !ok {
			return fmt.Errorf("cannot assign attribute %q: %q is not a namespace", t.attr, t.name)
		}
		ns.d.put(Trusted(t.attr), t.attr, v)
	default:
		in.frame.vars[t.name] = v
	}
	return nil
}

// forLoop runs the body once per item in a fresh scope. With a condition the items are filtered first, so that the loop
// variables count what remains.
func (in *interp) forLoop(s *forStmt) (jump, error) {
	v, err := in.eval(s.iter)
	if err != nil {
		return jumpNone, err
	}
	items, err := in.iterate(v)
	if err != nil {
		return jumpNone, err
	}
	if s.cond != nil {
		var kept []Value
		for _, item := range items {
			leave := in.push(in.frame)
			err := in.assign(s.target, item)
			var ok Value
			if err == nil {
				ok, err = in.eval(s.cond)
			}
			leave()
			if err != nil {
				return jumpNone, err
			}
			if truth(ok) {
				kept = append(kept, item)
			}
		}
		items = kept
	}
	if len(items) == 0 {
		defer in.push(in.frame)()
		return in.exec(s.alt)
	}
	loop := &loopState{items: items}
	for i, item := range items {
		loop.i = i
		if err := in.charge(loopSteps, 0); err != nil {
			return jumpNone, err
		}
		leave := in.push(in.frame)
		in.frame.vars["loop"] = loop
		err := in.assign(s.target, item)
		j := jumpNone
		if err == nil {
			j, err = in.exec(s.body)
		}
		leave()
		if err != nil {
			return jumpNone, err
		}
		if j == jumpBreak {
			break
		}
	}
	return jumpNone, nil
}

// loopState is the object named loop.
type loopState struct {
	items   []Value
	i       int
	changed []Value
}

func (l *loopState) attr(name string) (Value, bool) {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.i + 1), true
	case "index0":
		return int64(l.i), true
	case "revindex":
		return int64(n - l.i), true
	case "revindex0":
		return int64(n - l.i - 1), true
	case "first":
		return l.i == 0, true
	case "last":
		return l.i == n-1, true
	case "length":
		return int64(n), true
	case "depth": // counts recursive loops only, which do not exist here
		return int64(1), true
	case "depth0":
		return int64(0), true
	case "previtem":
		if l.i == 0 {
			return undefined{"there is no previous item"}, true
		}
		return l.items[l.i-1], true
	case "nextitem":
		if l.i == n-1 {
			return undefined{"there is no next item"}, true
		}
		return l.items[l.i+1], true
	case "cycle":
		return &function{"cycle", func(_ *interp, a callArgs) (Value, error) {
			if len(a.pos) == 0 {
				return nil, errors.New("no items for cycling given")
			}
			return a.pos[l.i%len(a.pos)], nil
		}}, true
	case "changed":
		return &function{"changed", func(in *interp, a callArgs) (Value, error) {
			if l.changed != nil {
				if same, err := in.equal(&List{items: l.changed}, &List{items: a.pos}); same || err != nil {
					return false, err
				}
			}
			l.changed = append([]Value{}, a.pos...)
			return true, nil
		}}, true
	}
	return nil, false
}

// iterate gives the items of a value as a loop sees them.
func (in *interp) iterate(v Value) ([]Value, error) {
	switch x := v.(type) {
	case *List:
		return x.items, in.charge(len(x.items), 0)
	case *Dict:
		return x.keys, in.charge(len(x.keys), 0)
	case Str:
		if err := in.parts(x.runeLen()); err != nil {
			return nil, err
		}
		rs := x.runes()
		out := make([]Value, len(rs))
		for i, r := range rs {
			out[i] = r
		}
		return out, nil
	case undefined:
		return nil, nil
	}
	return nil, fmt.Errorf("'%s' object is not iterable", typeName(v))
}

// macro makes the function of a macro, bound to the scope it is defined in.
func (in *interp) macro(m *macroDef) *function {
	defined := in.frame
	return &function{m.name, func(in *interp, args callArgs) (Value, error) {
		if in.depth++; in.depth > in.maxDepth {
			return nil, fmt.Errorf("macros call each other more than %d deep", in.maxDepth)
		}
		defer func() { in.depth-- }()
		defer in.push(defined)()
		if err := in.bind(m, args); err != nil {
			return nil, err
		}
		return in.capture(m.body, nil)
	}}
}

// bind stores the arguments of a macro call in its scope.
func (in *interp) bind(m *macroDef, args callArgs) error {
	vars := in.frame.vars
	named := map[string]Value{}
	for i, n := range args.names {
		if _, dup := named[n]; dup {
			return fmt.Errorf("macro %q: argument %q is given twice", m.name, n)
		}
		named[n] = args.named[i]
	}
	if caller, ok := named["caller"]; ok {
		vars["caller"] = caller
		delete(named, "caller")
	}
	firstDefault := len(m.params) - len(m.defaults)
	for i, p := range m.params {
		v, ok := named[p]
		delete(named, p)
		switch {
		case i < len(args.pos):
			if ok {
				return fmt.Errorf("macro %q: argument %q is given twice", m.name, p)
			}
			vars[p] = args.pos[i]
		case ok:
			vars[p] = v
		case i >= firstDefault:
			d, err := in.eval(m.defaults[i-firstDefault])
			if err != nil {
				return err
			}
			vars[p] = d
		default:
			vars[p] = undefined{fmt.Sprintf("parameter %q was not provided", p)}
		}
	}
	if extra := args.pos[min(len(m.params), len(args.pos)):]; m.extraPos {
		vars["varargs"] = &List{items: extra, tuple: true}
	} else if len(extra) > 0 {
		return fmt.Errorf("macro %q takes not more than %d argument(s)", m.name, len(m.params))
	}
	if m.extraNamed {
		d := NewDict()
		for _, n := range args.names {
			if v, ok := named[n]; ok {
				d.put(Trusted(n), n, v)
			}
		}
		vars["kwargs"] = d
		return nil
	}
	for _, n := range args.names {
		if _, ok := named[n]; ok {
			return fmt.Errorf("macro %q takes no argument %q", m.name, n)
		}
	}
	return nil
}

// callBlock calls a macro with the block's body as the function caller, and prints the result.
func (in *interp) callBlock(s *callStmt) error {
	fn, err := in.eval(s.call.fn)
	if err != nil {
		return err
	}
	args, err := in.callArgs(s.call.args)
	if err != nil {
		return err
	}
	args.names = append(args.names, "caller")
	args.named = append(args.named, in.macro(s.caller))
	v, err := in.callValue(fn, args)
	if err != nil {
		return err
	}
	text, err := in.toStr(v)
	if err != nil {
		return err
	}
	return in.print(text)
}
