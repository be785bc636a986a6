// Package piece cuts prompts. A cold run reads a prompt in pieces, and the state after a piece is canonical: every
// prompt that begins with the same tokens and has a border there reaches it with the same bits, cold or from a stored
// state.
//
// So borders are a function of the token ids and of the rule below alone, which is part of the contract id
// (services/workernode/contract.go), never of what is cached, of the load or of the memory left:
//
//   - a border after each end-of-message token that is followed within 5 tokens by the next role header, if the piece
//     has at least 64 tokens by then;
//   - a border every 512 tokens, counted from the last border.
//
// A piece of at most PromptRows tokens has the numeric contract of decoding, a longer one that of prompts, whatever
// steps it is run in. Steps cut a piece at multiples of 64 positions from its start only.
package piece

import "slices"

const (
	// Grid is the most tokens of a piece. A larger one loses more to an edit in the middle of a long message.
	Grid = 512
	// Least tokens of a piece that a message ends. A larger one stores fewer states and reads more tokens again.
	Least = 64
	// Unit of a step in positions from the start of its piece: cuts at its multiples change no bits (native/NUMERICS.md).
	Unit = 64
	// ahead is how many tokens after the end of a message the next role header begins at the latest.
	ahead = 5
)

// Rule names the borders' rule in contract ids. It changes with everything above.
const Rule = "pieces 1 grid 512 least 64"

// Markers are the tokens that structure a prompt. Without them a prompt has only the grid.
type Markers struct {
	Ends    []int32 // end a message
	Headers []int32 // begin the header of a role
}

// Cuts are where a prompt is cut.
type Cuts struct {
	// Borders between pieces, ascending: positions after the first token and before the last.
	Borders []int
	// Messages are the positions after the end of each message that another one follows, ascending; not all are borders.
	Messages []int
}

// Cut returns the cuts of a prompt, in the memory of c.
func (m Markers) Cut(tokens []int32, c Cuts) Cuts {
	c.Borders, c.Messages = c.Borders[:0], c.Messages[:0]
	last := 0
	for at := 1; at < len(tokens); at++ {
		ends := m.ends(tokens, at)
		if ends {
			c.Messages = append(c.Messages, at)
		}
		if ends && at-last >= Least || at-last == Grid {
			c.Borders = append(c.Borders, at)
			last = at
		}
	}
	return c
}

// ends reports whether a message ends before position at and another one follows.
func (m Markers) ends(tokens []int32, at int) bool {
	if !slices.Contains(m.Ends, tokens[at-1]) {
		return false
	}
	for _, t := range tokens[at:min(at+ahead, len(tokens))] {
		if slices.Contains(m.Headers, t) {
			return true
		}
	}
	return false
}

// Next returns the piece of a prompt of length tokens that position from, before the prompt's end, is in.
func (c Cuts) Next(from, length int) (first, end int) {
	i, found := slices.BinarySearch(c.Borders, from)
	if found {
		i++
	}
	end = length
	if i < len(c.Borders) {
		end = c.Borders[i]
	}
	if i > 0 {
		first = c.Borders[i-1]
	}
	return first, end
}

// Below returns the last border at or below a position, 0 when there is none.
func (c Cuts) Below(position int) int {
	i, found := slices.BinarySearch(c.Borders, position)
	if found {
		return position
	}
	if i == 0 {
		return 0
	}
	return c.Borders[i-1]
}

// Step returns the rows of a step in an engine whose widest step has so many: at most chunk, which is rounded down to a
// multiple of Unit but not below it; 0 = the engine's widest. An engine of fewer rows than Unit cuts pieces elsewhere,
// which the contract id must say where it changes bits.
func Step(widest, chunk int) int {
	if chunk > 0 {
		widest = min(widest, max(chunk, Unit))
	}
	if widest > Unit {
		widest -= widest % Unit
	}
	return widest
}
