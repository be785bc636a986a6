// Command testsum runs test programs of different kinds and adds up what they report.
//
//	testsum run -name go -dir build/test -- go test -json ./...
//	testsum run -name native -dir build/test -junit build/test/native.xml -- ctest --output-junit build/test/native.xml
//	testsum total -dir build/test
//
// run prints one line per package or case and the output of what failed, and always exits 0 unless it cannot write its
// result: so one failing runner does not hide the others. total prints a table and closes with the one plain line
// "N passed, N failed, N skipped"; it exits 1 when anything failed or nothing ran.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"text/tabwriter"
	"time"
)

// Result is what one runner reported.
type Result struct {
	Name     string
	Passed   int
	Failed   int
	Skipped  int
	Seconds  float64
	Failures []string // "package test"
	Skips    []string // "package test: reason"
}

func main() {
	if len(os.Args) < 2 {
		fatal("usage: testsum run|total …")
	}
	switch os.Args[1] {
	case "run":
		run(os.Args[2:])
	case "total":
		total(os.Args[2:])
	default:
		fatal("testsum: unknown command " + os.Args[1])
	}
}

func run(args []string) {
	flags := flag.NewFlagSet("run", flag.ExitOnError)
	name := flags.String("name", "", "name of the runner in the table")
	dir := flags.String("dir", "build/test", "folder for the result")
	junit := flags.String("junit", "", "JUnit file that the command writes; empty: the command prints go test -json")
	_ = flags.Parse(args)
	command := flags.Args()
	if *name == "" || len(command) == 0 {
		fatal("testsum run: -name and a command are needed")
	}
	fmt.Printf("--- %s: %s\n", *name, strings.Join(command, " "))
	start := time.Now()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	var result Result
	var err error
	if *junit == "" {
		var pipe interface{ Read([]byte) (int, error) }
		pipe, err = cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			result = readGo(pipe, os.Stdout)
			err = cmd.Wait()
		}
	} else {
		_ = os.Remove(*junit)
		cmd.Stdout = os.Stdout
		err = cmd.Run()
		var readErr error
		if result, readErr = readJUnit(*junit); readErr != nil && err == nil {
			err = readErr
		}
	}
	if err != nil && result.Failed == 0 {
		result.Failed++
		result.Failures = append(result.Failures, fmt.Sprintf("%s: %v", strings.Join(command, " "), err))
	}
	result.Name, result.Seconds = *name, time.Since(start).Seconds()
	data, err := json.MarshalIndent(result, "", " ")
	if err == nil {
		err = os.MkdirAll(*dir, 0o755)
	}
	if err == nil {
		// The time in the name keeps the runners in the order in which they ran.
		err = os.WriteFile(filepath.Join(*dir, fmt.Sprintf("%d.result.json", start.UnixMilli())), data, 0o644)
	}
	if err != nil {
		fatal("testsum: " + err.Error())
	}
}

func total(args []string) {
	flags := flag.NewFlagSet("total", flag.ExitOnError)
	dir := flags.String("dir", "build/test", "folder with results")
	_ = flags.Parse(args)
	paths, _ := filepath.Glob(filepath.Join(*dir, "*.result.json"))
	sort.Strings(paths)
	var sum Result
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nrunner\tpassed\tfailed\tskipped\tseconds")
	var skips, failures []string
	for _, path := range paths {
		data, err := os.ReadFile(path)
		var r Result
		if err == nil {
			err = json.Unmarshal(data, &r)
		}
		if err != nil {
			fatal("testsum: " + err.Error())
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%.0f\n", r.Name, r.Passed, r.Failed, r.Skipped, r.Seconds)
		sum.Passed += r.Passed
		sum.Failed += r.Failed
		sum.Skipped += r.Skipped
		for _, s := range r.Skips {
			skips = append(skips, r.Name+": "+s)
		}
		for _, f := range r.Failures {
			failures = append(failures, r.Name+": "+f)
		}
	}
	_ = table.Flush()
	list("skipped:", skips)
	list("failed:", failures)
	fmt.Printf("\n%d passed, %d failed, %d skipped\n", sum.Passed, sum.Failed, sum.Skipped)
	if sum.Failed > 0 || sum.Passed == 0 {
		os.Exit(1)
	}
}

func list(title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Println("\n" + title)
	for _, line := range lines {
		fmt.Println("  " + line)
	}
}

func fatal(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(2)
}
