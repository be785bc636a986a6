package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
)

// A Loop is an innermost loop of a kernel in which matrix instructions stand.
type Loop struct {
	Kernel       string // mangled
	Instructions int    // from its start to the first branch back
	Matrix       int    // of them matrix instructions
}

var (
	sassFunction = regexp.MustCompile(`^\s*Function : (\S+)`)
	sassLine     = regexp.MustCompile(`^\s*/\*([0-9a-f]{4,})\*/\s+([^;]+?)\s*;`)
	sassBranch   = regexp.MustCompile(`\bBRA\b.*?0x([0-9a-f]+)`)
	sassMatrix   = regexp.MustCompile(`\b[A-Z]*MMA\b`)
)

// loops reads what `cuobjdump --dump-sass` prints.
func loops(r io.Reader) ([]Loop, error) {
	type instruction struct {
		at, target   uint64
		back, matrix bool // a branch backwards, to target
	}
	var out []Loop
	var kernel string
	var code []instruction
	end := func() {
		inner := uint64(0) // after the start of the last loop: one that begins before holds it, or ends it again
		for i, in := range code {
			if !in.back || in.target < inner {
				continue
			}
			from, found := slices.BinarySearchFunc(code, in.target,
				func(a instruction, at uint64) int { return cmp.Compare(a.at, at) })
			if !found {
				continue
			}
			l := Loop{Kernel: kernel, Instructions: i - from + 1}
			for _, c := range code[from:i] {
				if c.matrix {
					l.Matrix++
				}
			}
			inner = in.target + 1
			if l.Matrix > 0 {
				out = append(out, l)
			}
		}
		code = code[:0]
	}
	s := bufio.NewScanner(r)
	for s.Scan() {
		if m := sassFunction.FindStringSubmatch(s.Text()); m != nil {
			end()
			kernel = m[1]
			continue
		}
		m := sassLine.FindStringSubmatch(s.Text())
		if m == nil {
			continue
		}
		at, err := strconv.ParseUint(m[1], 16, 64)
		if err != nil {
			return nil, fmt.Errorf("address %q: %w", m[1], err)
		}
		in := instruction{at: at, matrix: sassMatrix.MatchString(m[2])}
		if b := sassBranch.FindStringSubmatch(m[2]); b != nil {
			target, err := strconv.ParseUint(b[1], 16, 64)
			if err != nil {
				return nil, fmt.Errorf("branch %q: %w", m[2], err)
			}
			in.target, in.back = target, target < at
		}
		code = append(code, in)
	}
	end()
	return out, s.Err()
}

// printLoops writes a line per loop, the names as in the table of resources.
func printLoops(w io.Writer, r io.Reader) error {
	list, err := loops(r)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return fmt.Errorf("no loop with matrix instructions: the input is to be the output of cuobjdump --dump-sass")
	}
	kernels := make([]Kernel, len(list))
	for i, l := range list {
		kernels[i].Name = l.Kernel
	}
	if err := demangle(kernels); err != nil {
		return err
	}
	for i, l := range list {
		fmt.Fprintf(w, "%4d instructions, %3d matrix  %s\n", l.Instructions, l.Matrix, kernels[i].Name)
	}
	return nil
}
