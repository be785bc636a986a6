package grammar

import "fmt"

// Limits of grammars. They bound memory and time for whatever text a client sends.
const (
	// MaxText is the longest grammar, in bytes.
	MaxText = 1 << 20
	// MaxRules of a grammar.
	MaxRules = 1 << 15
	// MaxNodes of the automaton.
	MaxNodes = 1 << 19
	// MaxRepeat is the largest bound of a repetition.
	MaxRepeat = 1 << 16
	// MaxNesting of groups in one rule.
	MaxNesting = 256
	// MaxDepth of rules being inside each other while text is followed: deeper text is outside the language.
	MaxDepth = 2048
)

// Error is a fault in a grammar text.
type Error struct {
	Line, Column int // from 1; columns count characters
	Message      string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("grammar line %d column %d: %s", e.Line, e.Column, e.Message)
}

// Syntax is a parsed grammar.
type Syntax struct {
	rules []rule
	names map[string]int
	root  int
	text  string // for the places of faults that only a vocabulary shows
}

type rule struct {
	name string
	body expr
	at   int // offset of the definition, -1 while only used
}

// expr is one of the types below.
type expr any

type (
	literal string
	// chars is one character out of ranges, sorted and disjoint.
	chars []runeRange
	seq   []expr
	alt   []expr
	ref   int
	// repeat is x at least min and at most max times, max < 0 = without end.
	repeat struct {
		x        expr
		min, max int
	}
	// tokens is one token out of a set, or with not one ordinary token outside it.
	tokens struct {
		not  bool
		list []tokenName
	}
	// members are some of parts, with a separator between them, in any order.
	members struct {
		least, most int // most < 0 = without end; parts that may come often count once towards least
		separator   expr
		parts       []memberPart
	}
	// text is any text without one of the literals; with through it ends with the first of them.
	text struct {
		through  bool
		literals []string
	}
)

// memberPart is a rule that comes once at most, exactly once, or any number of times; late says that it does not
// come first.
type memberPart struct {
	x                    expr
	required, many, late bool
}

type runeRange struct{ lo, hi rune }

// tokenName names a token by id or, when text is not empty, by its text.
type tokenName struct {
	id   int32
	text string
	at   int
}
