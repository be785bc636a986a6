// Command maskbench measures JSON schemas against a folder of test files in the form of MaskBench: each file is a JSON
// object with a schema and tests, each with data and valid. A schema passes when it is accepted, every valid instance
// is taken and every invalid one is refused. Instances are spelt as compact JSON, members in the order of the data.
//
//	go run ./bench/maskbench [-strict] [-list] [-vocabulary tokenizer.json] [-masks 400] FOLDER
//
// With a vocabulary (tokenizer.json, or ranks in the form of tiktoken) the masks of valid instances are timed, too: in
// CPU time of the thread, the least of three runs with a grammar of their own, so that a busy machine changes little.
// The exit status is 1 when an invalid instance is taken, unless it is invalid only for its formats: docs/grammar.md
// lists the formats that are not followed.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/bench/report"
	"github.com/tandem-inference/tandem/services/grammar"
	"github.com/tandem-inference/tandem/services/grammar/grammartest"
)

func main() {
	strict := flag.Bool("strict", false,
		"read schemas as strict ones: keys in the order of the schema, undeclared ones only where they are asked for")
	list := flag.Bool("list", false, "list the files that do not pass")
	vocabulary := flag.String("vocabulary", "", "tokenizer.json or FILE.tiktoken to time masks with")
	masks := flag.Int("masks", 400, "schemas whose masks are timed, spread over the folder")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	wrong, err := run(flag.Arg(0), *strict, *list, *vocabulary, *masks)
	if err != nil {
		report.Exit(err)
	}
	if wrong > 0 {
		fmt.Fprintf(os.Stderr, "maskbench: %d invalid instances are taken\n", wrong)
		os.Exit(1)
	}
}

// file is a schema with its tests.
type file struct {
	name   string
	Schema json.RawMessage `json:"schema"`
	Tests  []struct {
		Valid bool            `json:"valid"`
		Data  json.RawMessage `json:"data"`
	} `json:"tests"`
}

// outcome of a file.
type outcome struct {
	refused               *grammar.SchemaError // nil = accepted
	fault                 error                // of another kind
	valid, invalid        int
	missed, taken, format int // valid ones refused, invalid ones taken, those that are invalid by their format alone
	notes                 []string
	compile               time.Duration
}

func (o *outcome) passes() bool {
	return o.refused == nil && o.fault == nil && o.missed == 0 && o.taken == 0 && o.format == 0
}

func run(folder string, strict, list bool, vocabulary string, masks int) (wrong int, err error) {
	files, err := read(folder)
	if err != nil {
		return 0, err
	}
	outcomes := make([]outcome, len(files))
	bytesOnly := grammar.NewVocabulary(grammar.Source{Size: 256, Bytes: func(id int32) []byte { return []byte{byte(id)} },
		Named: func(string) (int32, bool) { return 0, false }})
	var wait sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for i := range next {
				outcomes[i] = try(&files[i], strict, bytesOnly)
			}
		})
	}
	for i := range files {
		next <- i
	}
	close(next)
	wait.Wait()

	var sum outcome
	passed, refused, faults, lost := 0, 0, 0, 0
	reasons := map[string]int{}
	var compile []time.Duration
	for i := range outcomes {
		o := &outcomes[i]
		compile = append(compile, o.compile)
		switch {
		case o.passes():
			passed++
		case o.refused != nil:
			refused++
			reasons[reason(o.refused)]++
		case o.fault != nil:
			faults++
		default:
			lost++
		}
		sum.valid += o.valid
		sum.invalid += o.invalid
		sum.missed += o.missed
		sum.taken += o.taken
		sum.format += o.format
		if list && !o.passes() {
			text := strings.Join(o.notes, "; ")
			if o.refused != nil {
				text = o.refused.Error()
			} else if o.fault != nil {
				text = o.fault.Error()
			}
			fmt.Printf("%s: %s\n", files[i].name, text)
		}
	}
	table := report.Table{Title: "Refused schemas by reason", Header: []string{"reason", "schemas"}}
	keys := make([]string, 0, len(reasons))
	for k := range reasons {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if reasons[a] != reasons[b] {
			return reasons[b] - reasons[a]
		}
		return strings.Compare(a, b)
	})
	for _, k := range keys {
		table.Add(k, reasons[k])
	}
	table.Write(os.Stdout)
	table = report.Table{Title: "Schemas", Header: []string{"", "number"}}
	table.Add("all", len(files))
	table.Add("pass", fmt.Sprintf("%d (%.2f %%)", passed, 100*float64(passed)/float64(max(1, len(files)))))
	table.Add("refused", refused)
	table.Add("faults", faults)
	table.Add("accepted with wrong instances", lost)
	table.Add("valid instances of accepted schemas", sum.valid)
	table.Add("valid refused", sum.missed)
	table.Add("invalid instances of accepted schemas", sum.invalid)
	table.Add("invalid taken", sum.taken)
	table.Add("invalid taken for their format alone", sum.format)
	table.Add("slowest compilation", slices.Max(append(compile, 0)))
	table.Write(os.Stdout)
	if vocabulary != "" {
		if err := times(files, outcomes, strict, vocabulary, masks); err != nil {
			return 0, err
		}
	}
	return sum.taken + faults, nil
}

func read(folder string) (files []file, err error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: no JSON files", folder)
	}
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		f := file{name: filepath.Base(name)}
		if err := json.Unmarshal(raw, &f); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if f.Schema == nil {
			return nil, fmt.Errorf("%s: has no schema", name)
		}
		files = append(files, f)
	}
	return files, nil
}

// text is the grammar of a schema.
func text(schema []byte, strict bool) (string, error) {
	w := grammar.NewWriter()
	rule, err := w.SchemaWith(schema, grammar.SchemaOptions{Open: !strict})
	if err != nil {
		return "", err
	}
	w.Define("root", rule)
	return w.Text(), nil
}

func try(f *file, strict bool, v *grammar.Vocabulary) (o outcome) {
	began := time.Now()
	rules, err := text(f.Schema, strict)
	o.compile = time.Since(began)
	if err != nil {
		se, ok := err.(*grammar.SchemaError)
		if !ok {
			o.fault = err
		}
		o.refused = se
		return o
	}
	syntax, err := grammar.Parse(rules)
	if err != nil {
		o.refused = &grammar.SchemaError{Message: err.Error()}
		return o
	}
	g, err := syntax.Compile(v)
	if err != nil {
		o.refused = &grammar.SchemaError{Message: err.Error()}
		return o
	}
	for _, t := range f.Tests {
		data, err := compact(t.Data)
		if err != nil {
			o.fault = err
			return o
		}
		s := g.AdvanceBytes(g.Start(), data)
		taken := g.Accepts(s)
		switch {
		case t.Valid:
			if o.valid++; !taken {
				o.missed++
				o.notes = append(o.notes, "refused "+place(g, data))
			}
		default:
			o.invalid++
			if !taken {
				break
			}
			judge, err := grammartest.ReadJudge(string(withoutFormats(f.Schema)), false)
			if err == nil && judge.Validate(string(data)) == nil {
				o.format++
				o.notes = append(o.notes, "format "+string(data))
			} else {
				o.taken++
				o.notes = append(o.notes, "taken "+string(data))
			}
		}
	}
	return o
}

// withoutFormats leaves out the keyword format wherever it has a text.
func withoutFormats(schema []byte) []byte {
	var root any
	d := json.NewDecoder(bytes.NewReader(schema))
	d.UseNumber()
	if err := d.Decode(&root); err != nil {
		return schema
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if _, ok := v["format"].(string); ok {
				delete(v, "format")
			}
			for _, x := range v {
				walk(x)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(root)
	out, err := json.Marshal(root)
	if err != nil {
		return schema
	}
	return out
}

// place shows where an instance stops being allowed.
func place(g *grammar.Grammar, data []byte) string {
	s := g.Start()
	for i := range data {
		t := g.AdvanceBytes(s, data[i:i+1])
		if t == nil {
			return fmt.Sprintf("%s ⟦here⟧ %s", data[max(0, i-80):i], data[i:min(len(data), i+60)])
		}
		s = t
	}
	return fmt.Sprintf("%s ⟦end⟧", data[max(0, len(data)-80):])
}

// compact spells a value without whitespace and without escapes that are not needed.
func compact(raw []byte) ([]byte, error) {
	var out []byte
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	type level struct {
		object bool
		n      int
	}
	var stack []level
	for {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		closes := t == json.Delim('}') || t == json.Delim(']')
		if len(stack) > 0 && !closes {
			top := &stack[len(stack)-1]
			switch {
			case top.object && top.n%2 == 1:
				out = append(out, ':')
			case top.n > 0:
				out = append(out, ',')
			}
			top.n++
		}
		switch t := t.(type) {
		case json.Delim:
			out = append(out, byte(t))
			if closes {
				stack = stack[:len(stack)-1]
			} else {
				stack = append(stack, level{object: t == '{'})
			}
		case string:
			var b bytes.Buffer
			e := json.NewEncoder(&b)
			e.SetEscapeHTML(false)
			if err := e.Encode(t); err != nil {
				return nil, err
			}
			out = append(out, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
		case json.Number:
			out = append(out, t...)
		case bool:
			out = fmt.Append(out, t)
		case nil:
			out = append(out, "null"...)
		}
		if len(stack) == 0 {
			return out, nil
		}
	}
}

// reason groups refusals: the last keyword of the path and the message without its numbers and names.
func reason(e *grammar.SchemaError) string {
	path := e.Path
	if i := strings.LastIndexAny(path, "."); i >= 0 {
		path = path[i+1:]
	}
	path, _, _ = strings.Cut(path, "[")
	message := e.Message
	if i := strings.IndexByte(message, '"'); i >= 0 {
		message = message[:i] + "…"
	}
	if len(message) > 70 {
		message = message[:70] + "…"
	}
	return path + ": " + message
}
