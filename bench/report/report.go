// Package report prints the tables of the measurements and writes their files.
package report

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Table collects rows under a title.
type Table struct {
	Title  string
	Header []string
	rows   [][]string
}

// Add appends a row; numbers are shown with three significant digits or so.
func (t *Table) Add(cells ...any) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		switch v := cell.(type) {
		case float64:
			row[i] = number(v)
		case time.Duration:
			row[i] = fmt.Sprintf("%.1f ms", float64(v.Microseconds())/1000)
		default:
			row[i] = fmt.Sprint(v)
		}
	}
	t.rows = append(t.rows, row)
}

func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// Write prints the table as Markdown, aligned for people too.
func (t *Table) Write(w io.Writer) {
	fmt.Fprintf(w, "\n## %s\n\n", t.Title)
	tab := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	line := func(cells []string) { fmt.Fprintf(tab, "| %s\t|\n", strings.Join(cells, "\t| ")) }
	line(t.Header)
	rule := make([]string, len(t.Header))
	for i := range rule {
		rule[i] = "---"
	}
	line(rule)
	for _, row := range t.rows {
		line(row)
	}
	_ = tab.Flush()
}

// Percentile of values, 0 ≤ p ≤ 1; 0 for none.
func Percentile(values []time.Duration, p float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

// Machine describes where the numbers were taken.
func Machine() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	model, cores := "unknown CPU", 0
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name":
			model = strings.TrimSpace(value)
			cores++
		}
	}
	return fmt.Sprintf("%d × %s, load %s at the start, %s", cores, model, Load(),
		time.Now().UTC().Format("2006-01-02 15:04 UTC"))
}

// Load is how many threads have run or waited to, on average of the last minute.
func Load() string {
	data, _ := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(data), " ")
	return load
}

// WriteJSON writes results to a file, whose folder is made.
func WriteJSON(path string, results any) error {
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// Main runs a program that judges, and exits with 1 unless what it judges has passed.
func Main(run func(ctx context.Context) (passed bool, err error)) {
	passed, err := run(context.Background())
	if err != nil {
		Exit(err)
	}
	if !passed {
		os.Exit(1)
	}
}

// Beside creates a file beside that of results, with another extension, and the folder of both.
func Beside(results, extension string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(results), 0o755); err != nil {
		return nil, err
	}
	return os.Create(strings.TrimSuffix(results, filepath.Ext(results)) + extension)
}

// Judge writes a result to a file, prints the problems and the last line, PASS or FAIL.
func Judge(file string, result any, problems []string) (passed bool, err error) {
	if err := WriteJSON(file, result); err != nil {
		return false, err
	}
	for _, p := range problems {
		fmt.Println("problem:", p)
	}
	if len(problems) > 0 {
		fmt.Println("FAIL")
		return false, nil
	}
	fmt.Println("PASS")
	return true, nil
}

// Exit ends the program with the error.
func Exit(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
