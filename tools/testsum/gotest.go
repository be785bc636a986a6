package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// event is a line of go test -json (cmd/test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

// readGo counts the tests and subtests of a go test -json stream and prints a line per package and the output
// of failures.
func readGo(r io.Reader, w io.Writer) Result {
	var result Result
	output := map[[2]string][]string{}
	failedTests := map[string]int{}
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() {
		var e event
		if json.Unmarshal(scanner.Bytes(), &e) != nil || e.Action == "" {
			fmt.Fprintln(w, scanner.Text()) // go writes what is not a test event as plain lines
			continue
		}
		key := [2]string{e.Package, e.Test}
		switch e.Action {
		case "output", "build-output":
			output[key] = append(output[key], e.Output)
			continue
		case "pass", "fail", "skip":
		default:
			continue
		}
		if e.Test == "" {
			packageDone(e, output, failedTests[e.Package] > 0, &result, w)
			continue
		}
		switch e.Action {
		case "pass":
			result.Passed++
		case "skip":
			result.Skipped++
			result.Skips = append(result.Skips, shortPackage(e.Package)+" "+e.Test+": "+skipReason(output[key]))
		case "fail":
			result.Failed++
			failedTests[e.Package]++
			result.Failures = append(result.Failures, shortPackage(e.Package)+" "+e.Test)
			fmt.Fprint(w, strings.Join(output[key], ""))
		}
		delete(output, key)
	}
	return result
}

// packageDone handles the end of a package. A package that fails without a failed test did not build, panicked or
// timed out.
func packageDone(e event, output map[[2]string][]string, explained bool, result *Result, w io.Writer) {
	switch e.Action {
	case "skip":
		return // no test files
	case "pass":
		fmt.Fprintf(w, "ok    %-60s %6.1fs\n", shortPackage(e.Package), e.Elapsed)
	case "fail":
		fmt.Fprintf(w, "FAIL  %-60s %6.1fs\n", shortPackage(e.Package), e.Elapsed)
		if !explained {
			result.Failed++
			result.Failures = append(result.Failures, shortPackage(e.Package)+" (did not build, or ended early)")
		}
		keys := make([][2]string, 0, 4)
		for key := range output {
			// Build output comes under an import path such as "p [p.test]".
			if strings.HasPrefix(key[0], e.Package) || key[0] == "" {
				keys = append(keys, key)
			}
		}
		slices.SortFunc(keys, func(a, b [2]string) int { return strings.Compare(a[0]+a[1], b[0]+b[1]) })
		for _, key := range keys {
			fmt.Fprint(w, strings.Join(output[key], ""))
			delete(output, key)
		}
	}
}

func shortPackage(p string) string {
	return strings.TrimPrefix(p, "github.com/tandem-inference/tandem/")
}

// skipReason finds the text that a test gave to t.Skip: the last line before the framework's own.
func skipReason(lines []string) string {
	for _, line := range slices.Backward(lines) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "---") || strings.HasPrefix(line, "===") {
			continue
		}
		if _, reason, found := strings.Cut(line, ".go:"); found {
			if _, text, ok := strings.Cut(reason, ": "); ok {
				return text
			}
		}
		return line
	}
	return "no reason given"
}
