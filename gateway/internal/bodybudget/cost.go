package bodybudget

// What reading makes of the parts of a body, in bytes of memory at the peak of its request. They were measured with the
// bodies of httpapi's TestBodyMemory, each all of one thing: the peak divided by how often the thing is there, rounded
// up. A part costs what the dearest place for it costs: text that becomes prompt, objects that are messages or
// a tool's schema.
const (
	// PerByte of a body, whatever it is: text, the tokens of it, and their copies.
	PerByte = 9
	// PerObject is one {.
	PerObject = 1500
	// PerValue is one comma: a member or an element more.
	PerValue = 300
	// PerNumber is a comma between numbers that lie in no object but the body itself: lists of tokens have many.
	PerNumber = 32
	perArray  = 150
	// The same parts of JSON text inside a string, as the arguments of a call are. It becomes values only once.
	perTextObject = 700
	perTextValue  = 200
)

// OfText is what a text that is not part of JSON costs besides its bytes.
func OfText(text []byte) (cost int64) {
	s := scan{inString: true, fresh: true}
	for _, c := range text {
		if !s.fresh && !s.json {
			break
		}
		cost += s.character(c)
	}
	return cost
}

// scan goes through JSON as it arrives and adds up what it costs. It allocates nothing, and knows no fields: what is
// counted holds for every place. What is not valid JSON is refused later, and cheap.
type scan struct {
	// last is the last byte outside of strings and spaces; number says that a digit came before it. objects are those
	// around it.
	last    byte
	number  bool
	objects int

	inString bool
	// fresh says that the string had only spaces so far; json, that its text is an object or an array.
	fresh, json bool
	// escape is 0, or how many bytes of an escape came; code is the character of \u.
	escape int
	code   rune
}

func (s *scan) add(p []byte) int64 {
	cost := int64(len(p)) * PerByte
	for _, c := range p {
		if s.inString {
			cost += s.inside(c)
		} else {
			cost += s.outside(c)
		}
	}
	return cost
}

func (s *scan) outside(c byte) (cost int64) {
	switch c {
	case ' ', '\t', '\n', '\r':
		return 0
	case '"':
		s.inString, s.fresh, s.json = true, true, false
	case '{':
		cost = PerObject
		s.objects++
	case '}':
		s.objects--
	case '[':
		cost = perArray
	case ',':
		s.number = isDigit(s.last)
	}
	// A comma is counted when it is known what comes after it.
	if s.last == ',' {
		if s.number && s.objects == 1 && (isDigit(c) || c == '-') {
			cost += PerNumber
		} else {
			cost += PerValue
		}
	}
	s.last = c
	return cost
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func (s *scan) inside(c byte) int64 {
	switch {
	case s.escape == 0 && c == '\\':
		s.escape = 1
		return 0
	case s.escape == 0 && c == '"':
		s.inString = false
		return 0
	case s.escape == 1 && c == 'u':
		s.escape, s.code = 2, 0
		return 0
	case s.escape == 1:
		s.escape = 0
		if c == 'n' || c == 'r' || c == 't' {
			c = ' '
		}
	case s.escape > 1:
		s.code = s.code<<4 | hexDigit(c)
		if s.escape++; s.escape < len(`\u0000`) {
			return 0
		}
		s.escape = 0
		c = byte(min(s.code, 0xff))
	}
	if s.fresh || s.json {
		return s.character(c)
	}
	return 0
}

func hexDigit(c byte) rune {
	switch {
	case isDigit(c):
		return rune(c - '0')
	case 'a' <= c && c <= 'f':
		return rune(c - 'a' + 10)
	case 'A' <= c && c <= 'F':
		return rune(c - 'A' + 10)
	}
	return 0
}

// character counts one of a string that may be JSON.
func (s *scan) character(c byte) int64 {
	if s.fresh {
		if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
			return 0
		}
		s.fresh, s.json = false, c == '{' || c == '['
	}
	if !s.json {
		return 0
	}
	switch c {
	case '{':
		return perTextObject
	case '[':
		return perArray
	case ',':
		return perTextValue
	}
	return 0
}
