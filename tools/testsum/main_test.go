package main

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestReadGo(t *testing.T) {
	const p = "github.com/tandem-inference/tandem/"
	stream := strings.Join([]string{
		`{"Action":"run","Package":"` + p + `a","Test":"TestOne"}`,
		`{"Action":"pass","Package":"` + p + `a","Test":"TestOne"}`,
		`{"Action":"output","Package":"` + p +
			`a","Test":"TestSkip","Output":"    x_test.go:12: needs a container engine\n"}`,
		`{"Action":"output","Package":"` + p + `a","Test":"TestSkip","Output":"--- SKIP: TestSkip (0.00s)\n"}`,
		`{"Action":"skip","Package":"` + p + `a","Test":"TestSkip"}`,
		`{"Action":"pass","Package":"` + p + `a","Elapsed":1}`,
		`{"Action":"output","Package":"` + p + `b","Test":"TestBad","Output":"    y_test.go:3: wrong\n"}`,
		`{"Action":"fail","Package":"` + p + `b","Test":"TestBad"}`,
		`{"Action":"fail","Package":"` + p + `b","Elapsed":1}`,
		`{"ImportPath":"` + p + `c [c.test]","Action":"build-output","Output":"syntax error\n"}`,
		`{"Action":"fail","Package":"` + p + `c","Elapsed":0,"FailedBuild":"c"}`,
		`{"Action":"skip","Package":"` + p + `d","Elapsed":0}`,
	}, "\n")
	var out strings.Builder
	got := readGo(strings.NewReader(stream), &out)
	want := Result{
		Passed: 1, Failed: 2, Skipped: 1,
		Failures: []string{"b TestBad", "c (did not build, or ended early)"},
		Skips:    []string{"a TestSkip: needs a container engine"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for _, text := range []string{"y_test.go:3: wrong", "syntax error", "FAIL  b", "ok    a"} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("output lacks %q:\n%s", text, out.String())
		}
	}
}

func TestReadGoEmpty(t *testing.T) {
	if got := readGo(strings.NewReader("go: no packages\n"), io.Discard); !reflect.DeepEqual(got, Result{}) {
		t.Errorf("got %+v", got)
	}
}

func TestReadJUnit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.xml")
	const file = `<?xml version="1.0"?><testsuite name="x" tests="3"><testcase name="ok" status="run"/>` +
		`<testcase name="bad" status="fail"><failure message="x"/></testcase>` +
		`<testcase name="off" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase></testsuite>`
	if err := os.WriteFile(path, []byte(file), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := readJUnit(path)
	want := Result{Passed: 1, Failed: 1, Skipped: 1, Failures: []string{"bad"},
		Skips: []string{"off: SKIP_RETURN_CODE=77"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}
