package grammar

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// distinct finds pairs of states that some text tells apart, by filling the table of all pairs.
func distinct(d *dfa) [][]bool {
	differ := make([][]bool, len(d.next))
	for i := range differ {
		differ[i] = make([]bool, len(d.next))
		for j := range differ[i] {
			differ[i][j] = d.final[i] != d.final[j]
		}
	}
	for changed := true; changed; {
		changed = false
		for i := range differ {
			for j := range differ {
				if differ[i][j] {
					continue
				}
				for k := range d.cuts {
					a, b := d.next[i][k], d.next[j][k]
					if a < 0 != (b < 0) || a >= 0 && b >= 0 && differ[a][b] {
						differ[i][j], changed = true, true
						break
					}
				}
			}
		}
	}
	return differ
}

// TestClasses compares the classes of random automata, with loops and without, with the table of all pairs.
func TestClasses(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	joined := 0
	for range 2000 {
		states, cuts := 1+random.IntN(14), 1+random.IntN(4)
		loops := random.IntN(2) == 0
		d := &dfa{cuts: make([]rune, cuts)}
		for n := range states {
			row := make([]int32, cuts)
			for k := range row {
				row[k] = -1
				if from := n + 1; random.IntN(3) > 0 && loops {
					row[k] = int32(random.IntN(states))
				} else if !loops && from < states {
					row[k] = int32(from + random.IntN(states-from))
				}
			}
			d.next, d.final = append(d.next, row), append(d.final, n == states-1 || random.IntN(3) == 0)
		}
		d = d.trimmed()
		if len(d.next) == 0 {
			continue
		}
		class, count := d.classes()
		differ := distinct(d)
		for i := range class {
			for j := range class {
				if (class[i] == class[j]) == differ[i][j] {
					t.Fatalf("states %d and %d of %v, final %v: classes %v", i, j, d.next, d.final, class)
				}
			}
		}
		met := int32(0)
		for _, c := range class {
			if c > met {
				t.Fatalf("class %d comes before %d in %v", c, met, class)
			} else if c == met {
				met++
			}
		}
		if int(met) != count || slices.Max(class) != met-1 {
			t.Fatalf("%d classes of %v", count, class)
		}
		joined += len(d.next) - count
	}
	if joined < 1000 {
		t.Errorf("only %d states were joined", joined)
	}
}
