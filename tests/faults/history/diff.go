package history

import "slices"

// difference counts how the tokens of an answer differ from those of its reference.
type difference struct {
	lost, doubled, different int
	// first is the index in the answer at which the first of them is.
	first int
}

// compare aligns an answer with its reference along their longest common subsequence. Tokens that are missing are lost;
// further ones that repeat those before them are doubled; all others are different. What is missing at the end counts
// only if the answer is whole.
func compare(want, got []Token, whole bool) difference {
	from := 0
	for from < len(want) && from < len(got) && want[from] == got[from] {
		from++
	}
	d := difference{first: from}
	a, b := want[from:], got[from:]
	common := commonLengths(a, b)
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		if i < len(a) && j < len(b) && a[i] == b[j] {
			i, j = i+1, j+1
			continue
		}
		// A run without a common token.
		i0, j0 := i, j
		for (i < len(a) || j < len(b)) && (i == len(a) || j == len(b) || a[i] != b[j]) {
			if j == len(b) || i < len(a) && common[i+1][j] >= common[i][j+1] {
				i++
			} else {
				j++
			}
		}
		missing, further := i-i0, b[j0:j]
		if i == len(a) && j == len(b) && !whole {
			missing = min(missing, len(further))
		}
		at := from + j0
		switch {
		case missing == 0 && at >= len(further) && slices.Equal(further, got[at-len(further):at]):
			d.doubled += len(further)
		default:
			changed := min(missing, len(further))
			d.different += changed
			d.lost += missing - changed
			d.different += len(further) - changed
		}
	}
	return d
}

// commonLengths returns the lengths of the longest common subsequences of all pairs of tails of a and b.
func commonLengths(a, b []Token) [][]int32 {
	common := make([][]int32, len(a)+1)
	cells := make([]int32, (len(a)+1)*(len(b)+1))
	for i := range common {
		common[i] = cells[i*(len(b)+1) : (i+1)*(len(b)+1)]
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	return common
}
