package chattemplate

// Expressions. Each node knows its line, for messages.
type expr interface{ where() int }

type at struct{ line int }

func (a at) where() int { return a.line }

type (
	constExpr struct {
		at
		v Value
	}
	nameExpr struct {
		at
		name string
	}
	listExpr struct {
		at
		items []expr
		tuple bool
	}
	dictExpr struct {
		at
		keys, vals []expr
	}
	attrExpr struct {
		at
		obj  expr
		name string
	}
	itemExpr struct {
		at
		obj, key expr
	}
	sliceExpr struct {
		at
		obj               expr
		start, stop, step expr // nil when left out
	}
	callExpr struct {
		at
		fn   expr
		args argList
	}
	filterExpr struct {
		at
		obj  expr // nil in a filter block
		name string
		fn   filterFunc
		args argList
	}
	testExpr struct {
		at
		obj    expr
		name   string
		fn     testFunc
		args   argList
		negate bool
	}
	unaryExpr struct {
		at
		op string // "-", "+", "not"
		x  expr
	}
	binaryExpr struct {
		at
		op   string // + - * / // % ** and or
		l, r expr
	}
	concatExpr struct {
		at
		parts []expr
	}
	compareExpr struct {
		at
		first expr
		ops   []string // == != < <= > >= in "not in"
		rest  []expr
	}
	condExpr struct {
		at
		test, yes, no expr // no may be nil
	}
)

// argList holds the arguments of a call.
type argList struct {
	pos   []expr
	names []string
	named []expr
	star  expr // *args
	dstar expr // **kwargs
}

// Statements.
type stmt interface{ where() int }

type (
	dataStmt struct {
		at
		text string
	}
	printStmt struct {
		at
		x expr
	}
	ifStmt struct {
		at
		test      expr
		then, alt []stmt
	}
	forStmt struct {
		at
		target     target
		iter, cond expr // cond may be nil
		body, alt  []stmt
	}
	setStmt struct {
		at
		target target
		x      expr
	}
	setBlockStmt struct {
		at
		target  target
		filters []*filterExpr
		body    []stmt
	}
	withStmt struct {
		at
		targets []target
		vals    []expr
		body    []stmt
	}
	macroStmt struct {
		at
		name  string
		macro *macroDef
	}
	callStmt struct {
		at
		call   *callExpr
		caller *macroDef
	}
	filterStmt struct {
		at
		filters []*filterExpr
		body    []stmt
	}
	scopeStmt struct { // generation blocks: only their body matters here
		at
		body []stmt
	}
	jumpStmt struct {
		at
		jump jump
	}
)

// target is what an assignment or a loop writes to: a name, an attribute of a namespace, or a tuple of targets.
type target struct {
	name  string
	attr  string
	tuple []target
}

// macroDef is the code of a macro or of a call block.
type macroDef struct {
	name     string
	params   []string
	defaults []expr // of the last len(defaults) parameters
	body     []stmt
	// extraPos and extraNamed say that the body uses varargs or kwargs.
	extraPos, extraNamed bool
}
