package main

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables into the page")

// TestPage: the page's tables are what the program computes. -update writes them.
func TestPage(t *testing.T) {
	const path, begin, end = "../../docs/speed-log/predictions.md", "<!-- predict -->\n", "<!-- /predict -->\n"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(data), begin)
	held, tail, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no %q and %q", path, begin, end)
	}
	want := "\n" + tables() + "\n"
	if held == want {
		return
	}
	if !*update {
		t.Fatalf("%s differs from what bench/predict computes: run go test ./predict -update in bench/", path)
	}
	if err := os.WriteFile(path, []byte(head+begin+want+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestBounds: more rows and longer contexts never cost less, and no step beats the time to read the weights.
func TestBounds(t *testing.T) {
	for _, c := range cards {
		for _, codes := range []bool{false, true} {
			last := weightGB / c.gbs * 1e3
			for _, rows := range []int{1, 8, 16, 23} {
				short, long := c.step(rows, 1024, codes), c.step(rows, 32768, codes)
				if short < last || long < short {
					t.Errorf("%s, %d rows: %.2f ms at 1K after %.2f, %.2f at 32K", c.name, rows, short, last, long)
				}
				last = short
			}
		}
		if c.prefill(8192) < 16*c.prefill(chunk) {
			t.Errorf("%s: a prompt of 16 pieces takes less than 16 of one", c.name)
		}
	}
}
