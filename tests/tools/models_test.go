package tools

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-inference/tandem/tests/cluster"
)

// cells returns the cells of a table's row, nil for other lines.
func cells(line string) []string {
	if !strings.HasPrefix(line, "| ") {
		return nil
	}
	parts := strings.Split(strings.Trim(line, "| "), "|")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// part is a row of the first table of docs/models.md: GB and bytes a token.
type part struct {
	weights, tables, state float64
	kv                     [3]float64 // f16, q8_0, q4_0
}

// work is what a process needs to work in, GB, as tandem inspect counts it.
func work(p part) float64 { return 0.067 + p.weights/32 }

const (
	gib = 1.073741824 // GB
	// scoredPrompt is what a prompt of 40,960 tokens takes in the scorer, GB.
	scoredPrompt = 10880 * 40960 / 1e9
	modelsLimit  = 262 // thousands of tokens
)

// TestModelsThatFit computes the contexts of docs/models.md from the parts that it lists, and holds README's table
// to them.
func TestModelsThatFit(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/models.md"))
	if err != nil {
		t.Fatal(err)
	}
	number := func(text string) float64 {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	parts := map[string]part{}
	var rows [][]string
	for _, line := range strings.Split(string(page), "\n") {
		c := cells(line)
		switch {
		case len(c) != 8:
		case strings.HasSuffix(c[0], " GB"):
			rows = append(rows, c)
		case c[0] != "Part" && c[0] != "Card" && !strings.HasPrefix(c[0], "-"):
			parts[c[0]] = part{number(c[1]), number(c[2]), number(c[3]), [3]float64{number(c[4]), number(c[5]), number(c[6])}}
		}
	}
	if len(parts) < 8 || len(rows) < 8 {
		t.Fatalf("%d parts and %d rows", len(parts), len(rows))
	}
	find := func(name string) part {
		p, ok := parts[name]
		if !ok {
			t.Fatalf("%s is not among the parts", name)
		}
		return p
	}
	for _, row := range rows {
		requests := number(row[4])
		target := find(row[1])
		free := (number(strings.TrimSuffix(row[0], " GB"))-1)*gib - target.weights - work(target) - requests*target.state
		perToken := target.kv
		if row[2] != "–" {
			draft := find(row[2])
			free -= draft.weights + work(draft) + target.tables
			for i := range perToken {
				perToken[i] += draft.kv[i]
			}
		}
		if row[3] != "–" {
			scorer := find(row[3])
			free -= scorer.weights + work(scorer) + scoredPrompt
		}
		for i, bytes := range perToken {
			want := min(modelsLimit, int(free*1e9/bytes/requests/1000))
			if row[5+i] != strconv.Itoa(want) {
				t.Errorf("%s: context %d is %s, computed %d", strings.Join(row[:5], ", "), i, row[5+i], want)
			}
		}
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, line := range strings.Split(string(readme), "\n") {
		c := cells(line)
		if len(c) != 7 || !strings.HasSuffix(c[0], " GB") {
			continue
		}
		shown++
		if !slices.ContainsFunc(rows, func(row []string) bool {
			return slices.Equal(c, slices.Concat(row[:4], row[5:])) && row[4] == "1"
		}) {
			t.Errorf("README.md: docs/models.md has no row %v", c)
		}
	}
	if shown < 4 {
		t.Errorf("README.md shows %d rows", shown)
	}
}
