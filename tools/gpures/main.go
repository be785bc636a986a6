// Command gpures compares what GPU kernels take of their processors with native/GPU_RESOURCES.tsv, and the kernels that
// HIP objects launch with those that they hold.
//
//	gpures -table native/GPU_RESOURCES.tsv -junit build/test/gpu.xml native/build/cuda native/build/hip
//	gpures -table native/GPU_RESOURCES.tsv -sources native -update native/build/cuda native/build/hip
//	gpures -table native/GPU_RESOURCES.tsv -sources native -changed native/build/cuda
//	cuobjdump --dump-sass native/build/cuda/matmul_rows.o | gpures -loops
//	gpures -occupancy native/GPU_OCCUPANCY.tsv sm_86=native/build/gpu_launches_emu
//
// The folders hold one report per object (native/cmake/compile_gpu.sh). A kernel must have exactly the registers,
// spills, scratch and shared memory of the table; with another version of a compiler only spills and scratch are
// judged, and that is said. With -sources the table also holds digests of what CUDA's kernels were made from: those
// of unchanged sources need neither be compiled (-changed prints the objects of the others) nor judged. In HIP's
// folder every object's host side must launch exactly the kernels that its code for each processor holds
// (objects.go). One case per processor and source file, and one per HIP object, goes into the JUnit file. With
// -occupancy the second table must follow from the first, and from the launches that the named programs print
// (occupancy.go).
package main

import (
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

type testCase struct {
	XMLName xml.Name `xml:"testcase"`
	Name    string   `xml:"name,attr"`
	Failure *failure `xml:"failure,omitempty"`
	Skipped *failure `xml:"skipped,omitempty"`
}

type failure struct {
	Message string `xml:"message,attr"`
}

const usage = `usage: gpures [flags] folder...
Compares the reports of GPU kernels in build folders with the table. In a folder of HIP it also checks that each object's
host side launches exactly the kernels that its code for each processor holds.
`

func main() {
	path := flag.String("table", "native/GPU_RESOURCES.tsv", "table to compare with")
	update := flag.Bool("update", false, "rewrite the table instead")
	sources := flag.String("sources", "",
		"the folder native: kernels of sources that the table was made from need no report")
	printChanged := flag.Bool("changed", false, "print the objects of the folder whose sources have changed instead")
	junit := flag.String("junit", "", "write cases to this JUnit file")
	countLoops := flag.Bool("loops", false,
		"count the instructions of loops with matrix instructions in the listing on standard input")
	occupancy := flag.String("occupancy", "",
		"compare (with -update: rewrite) this table of launches instead; arguments are ARCH=PROGRAM, or none")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if *countLoops {
		fatal(printLoops(os.Stdout, os.Stdin))
		return
	}
	if flag.NArg() == 0 && *occupancy == "" {
		fatal(fmt.Errorf("no folder\n%s", usage))
	}
	table, err := readTable(*path)
	if err != nil && !(*update && os.IsNotExist(err)) {
		fatal(err)
	}
	switch {
	case *occupancy != "":
		err := table.checkOccupancy(*occupancy, flag.Args(), *update)
		c := testCase{Name: filepath.Base(*occupancy) + " " + strings.Join(flag.Args(), " ")}
		if err != nil {
			c.Failure = &failure{err.Error()}
		}
		fatal(errors.Join(err, report(*junit, []testCase{c})))
		return
	case *update:
		fatal(rewrite(table, *path, *sources, flag.Args()))
		return
	case *printChanged:
		for _, folder := range flag.Args() {
			fatal(table.changed(os.Stdout, folder, *sources))
		}
		return
	}
	cases, err := compare(table, *sources, flag.Args())
	fatal(err)
	byName, err := checkObjects(flag.Args())
	fatal(err)
	changed, failed := show(cases), show(byName)
	cases = append(cases, byName...)
	fatal(report(*junit, cases))
	if changed > 0 {
		fmt.Println("After a change that is meant, run: make gpu-resources")
	}
	if changed+failed > 0 {
		os.Exit(1)
	}
}

// report writes the cases to a JUnit file; no path, no file.
func report(path string, cases []testCase) error {
	if path == "" {
		return nil
	}
	out, err := xml.MarshalIndent(struct {
		XMLName xml.Name `xml:"testsuite"`
		Cases   []testCase
	}{Cases: cases}, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, out, 0o644)
}

// show prints the cases that failed or were skipped and counts the former.
func show(cases []testCase) (failed int) {
	for _, c := range cases {
		switch {
		case c.Failure != nil:
			failed++
			fmt.Printf("FAIL  %s\n%s\n", c.Name, c.Failure.Message)
		case c.Skipped != nil:
			fmt.Printf("skip  %s: %s\n", c.Name, c.Skipped.Message)
		}
	}
	return failed
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpures:", err)
		os.Exit(1)
	}
}

// rewrite puts the kernels of the folders in the place of the table's rows for their processors, but for those of
// unchanged sources below native, and writes the digests of the sources; reasons stay.
func rewrite(t *Table, path, native string, folders []string) error {
	for _, folder := range folders {
		compiler, kernels, err := readFolder(folder)
		if err != nil {
			return err
		}
		vendor := filepath.Base(folder)
		same, err := t.compared(folder, native)
		if err != nil {
			return err
		}
		kernels = slices.DeleteFunc(kernels, func(k Kernel) bool { return same[k.File] })
		t.Compilers[vendor] = compiler
		if native != "" && recipes[vendor] != nil {
			now, err := digests(native, vendor)
			if err != nil {
				return err
			}
			maps.DeleteFunc(t.Sources, func(key [2]string, _ string) bool { return key[0] == vendor })
			for file, digest := range now {
				t.Sources[[2]string{vendor, file}] = digest
			}
		}
		archs := map[string]bool{}
		for _, k := range kernels {
			archs[k.Arch] = true
		}
		for key := range t.Rows {
			if archs[key[0]] && !same[key[1]] {
				delete(t.Rows, key)
			}
		}
		for _, k := range kernels {
			if _, double := t.Rows[k.key()]; double {
				return fmt.Errorf("%s: two kernels are called %s in %s.cu", k.Arch, k.Name, k.File)
			}
			t.Rows[k.key()] = k
		}
	}
	return t.write(path)
}

// vendorOf tells whose processor it is: sm_86, gfx1100.
func vendorOf(arch string) string {
	if strings.HasPrefix(arch, "sm_") {
		return "cuda"
	}
	return "hip"
}

// compare makes a case per processor and source file, and one per compiler. Sources below native that the table was
// made from get one case, whatever reports the folders hold of them.
func compare(t *Table, native string, folders []string) ([]testCase, error) {
	var cases []testCase
	reached := map[[3]string]bool{}
	archs := map[string]bool{}
	unreported := map[[2]string]bool{} // by vendor and file
	for _, folder := range folders {
		compiler, kernels, err := readFolder(folder)
		if err != nil {
			return nil, err
		}
		vendor := filepath.Base(folder)
		exact := t.Compilers[vendor] == compiler
		same, err := t.compared(folder, native)
		if err != nil {
			return nil, err
		}
		for _, file := range slices.Sorted(maps.Keys(same)) {
			if same[file] {
				cases = append(cases, testCase{Name: vendor + " " + file + " is what the table was made from"})
			}
		}
		kernels = slices.DeleteFunc(kernels, func(k Kernel) bool { return same[k.File] })
		for key := range t.Rows {
			switch file := key[1]; {
			case vendorOf(key[0]) != vendor || native == "":
			case same[file]:
				reached[key] = true
			case exact && !slices.ContainsFunc(kernels, func(k Kernel) bool { return k.File == file }):
				unreported[[2]string{vendor, file}] = true
			}
		}
		if !exact {
			cases = append(cases, testCase{Name: vendor + " compiler", Skipped: &failure{fmt.Sprintf(
				"registers are not compared: this is %s, the table was made with %s", compiler, t.Compilers[vendor])}})
		}
		for i := 0; i < len(kernels); {
			first := kernels[i]
			var bad []string
			for ; i < len(kernels) && kernels[i].Arch == first.Arch && kernels[i].File == first.File; i++ {
				k := kernels[i]
				reached[k.key()] = true
				archs[k.Arch] = archs[k.Arch] || exact
				if text := t.judge(k, exact); text != "" {
					bad = append(bad, "  "+k.Name+" "+text)
				}
			}
			c := testCase{Name: first.Arch + " " + first.File}
			if len(bad) > 0 {
				c.Failure = &failure{strings.Join(bad, "\n")}
			}
			cases = append(cases, c)
		}
	}
	var gone []string
	for key := range t.Rows {
		if (archs[key[0]] || unreported[[2]string{vendorOf(key[0]), key[1]}]) && !reached[key] {
			gone = append(gone, "  "+strings.Join(key[:], " "))
		}
	}
	if len(gone) > 0 {
		cases = append(cases, testCase{Name: "rows without a kernel", Failure: &failure{strings.Join(gone, "\n")}})
	}
	return cases, nil
}
