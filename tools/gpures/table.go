package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// Table is GPU_RESOURCES.tsv: the compilers and sources that it was made from, a row per kernel and processor, and the
// reasons for rows that spill or use scratch.
type Table struct {
	Compilers map[string]string    // by vendor: first word of the version
	Sources   map[[2]string]string // by vendor and file: digest of what the rows were made from
	Rows      map[[3]string]Kernel
	Notes     map[[3]string]string
}

const tableHead = "# Registers, spills and memory of the GPU kernels, as compiled in CI. make gpu-resources rewrites it; a row that spills or\n" +
	"# uses scratch needs a reason in its last column, which stays when the table is rewritten.\n"

const tableColumns = "arch\tfile\tkernel\tregisters\tspilled\tscratch\tshared\treason"

func readTable(path string) (*Table, error) {
	t := &Table{Compilers: map[string]string{}, Sources: map[[2]string]string{}, Rows: map[[3]string]Kernel{},
		Notes: map[[3]string]string{}}
	text, err := os.ReadFile(path)
	if err != nil {
		return t, err
	}
	for i, line := range strings.Split(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, "# compiler "); ok {
			vendor, version, _ := strings.Cut(rest, ": ")
			t.Compilers[vendor] = version
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# source "); ok {
			if f := strings.Fields(rest); len(f) == 3 {
				t.Sources[[2]string{f[0], f[1]}] = f[2]
				continue
			}
			return t, fmt.Errorf("%s:%d: want # source VENDOR FILE DIGEST", path, i+1)
		}
		if line == "" || line[0] == '#' || line == tableColumns {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 7 && len(f) != 8 {
			return t, fmt.Errorf("%s:%d: %d columns, want 7 or 8", path, i+1, len(f))
		}
		k := Kernel{Arch: f[0], File: f[1], Name: f[2], Registers: number(f[3]), Spilled: number(f[4]),
			Scratch: number(f[5]), Shared: number(f[6])}
		if _, double := t.Rows[k.key()]; double {
			return t, fmt.Errorf("%s:%d: a second row of %s %s", path, i+1, k.Arch, k.Name)
		}
		t.Rows[k.key()] = k
		if len(f) == 8 {
			t.Notes[k.key()] = f[7]
		}
	}
	return t, nil
}

func (t *Table) write(path string) error {
	var b strings.Builder
	b.WriteString(tableHead)
	for _, vendor := range slices.Sorted(maps.Keys(t.Compilers)) {
		fmt.Fprintf(&b, "# compiler %s: %s\n", vendor, t.Compilers[vendor])
	}
	for _, key := range slices.SortedFunc(maps.Keys(t.Sources),
		func(a, b [2]string) int { return slices.Compare(a[:], b[:]) }) {
		fmt.Fprintf(&b, "# source %s %s %s\n", key[0], key[1], t.Sources[key])
	}
	b.WriteString(tableColumns + "\n")
	for _, key := range slices.SortedFunc(maps.Keys(t.Rows),
		func(a, b [3]string) int { return slices.Compare(a[:], b[:]) }) {
		k := t.Rows[key]
		fmt.Fprintf(&b, "%s\t%s\t%s\t%d\t%d\t%d\t%d", k.Arch, k.File, k.Name, k.Registers, k.Spilled, k.Scratch, k.Shared)
		if note := t.Notes[key]; note != "" {
			b.WriteString("\t" + note)
		}
		b.WriteByte('\n')
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// judge compares one kernel with the table; "" is good. exact is false when the compiler differs from the table's: then
// only spills and scratch count.
func (t *Table) judge(k Kernel, exact bool) string {
	if (k.Spilled != 0 || k.Scratch != 0) && t.Notes[k.key()] == "" {
		return fmt.Sprintf("spills %d and uses %d bytes of scratch, and the table gives no reason", k.Spilled, k.Scratch)
	}
	want, ok := t.Rows[k.key()]
	switch {
	case !exact:
		return ""
	case !ok:
		return "is not in the table"
	case want != k:
		return fmt.Sprintf("has registers %d, spilled %d, scratch %d, shared %d; the table says %d, %d, %d, %d",
			k.Registers, k.Spilled, k.Scratch, k.Shared, want.Registers, want.Spilled, want.Scratch, want.Shared)
	}
	return ""
}
