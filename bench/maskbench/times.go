package main

import (
	"encoding/base64"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-inference/tandem/bench/report"
	"github.com/tandem-inference/tandem/services/grammar"
	"github.com/tandem-inference/tandem/services/tokenizer"
)

// vocabulary with the texts of its tokens.
type vocabulary struct {
	*grammar.Vocabulary
	size    int
	ids     map[string]int32
	longest int
}

// cut gives the longest tokens that a text begins with, one after the other.
func (v *vocabulary) cut(text []byte) (ids []int32) {
	for len(text) > 0 {
		n := min(len(text), v.longest)
		for ; n > 1; n-- {
			if _, ok := v.ids[string(text[:n])]; ok {
				break
			}
		}
		ids, text = append(ids, v.ids[string(text[:n])]), text[n:]
	}
	return ids
}

func load(path string) (*vocabulary, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list [][]byte
	if strings.HasSuffix(path, ".tiktoken") {
		for i, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
			text, rank, ok := strings.Cut(line, " ")
			b, err := base64.StdEncoding.DecodeString(text)
			if id, e := strconv.Atoi(rank); err != nil || !ok || e != nil || id != len(list) {
				return nil, fmt.Errorf("%s line %d: must be a token in base64 and its rank", path, i+1)
			}
			list = append(list, b)
		}
	} else {
		t, err := tokenizer.FromJSON(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		list = make([][]byte, t.VocabSize())
		for id := range list {
			if k := t.TokenKind(int32(id)); k == tokenizer.KindNormal || k == tokenizer.KindByte {
				list[id] = t.TokenBytes(int32(id))
			}
		}
	}
	v := &vocabulary{size: len(list), ids: map[string]int32{}}
	for id, b := range list {
		if len(b) > 0 {
			v.ids[string(b)] = int32(id)
			v.longest = max(v.longest, len(b))
		}
	}
	v.Vocabulary = grammar.NewVocabulary(grammar.Source{Size: len(list), Bytes: func(id int32) []byte { return list[id] },
		Named: func(text string) (int32, bool) { id, ok := v.ids[text]; return id, ok }})
	return v, nil
}

// spent is the CPU time of this thread.
func spent() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // a clock of Linux that is always there
	}
	return time.Duration(t.Nano())
}

// times prints how long masks of valid instances take, token by token, and how long it is from a schema to its
// first mask.
func times(files []file, outcomes []outcome, strict bool, path string, count int) error {
	v, err := load(path)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var masks, first []time.Duration
	schemas, step := 0, max(1, len(files)/max(1, count))
	for i := 0; i < len(files); i += step {
		f := &files[i]
		if outcomes[i].refused != nil || outcomes[i].fault != nil {
			continue
		}
		schemas++
		var texts [][]int32
		for _, t := range f.Tests {
			if t.Valid {
				data, err := compact(t.Data)
				if err != nil {
					return err
				}
				texts = append(texts, v.cut(data))
			}
		}
		var best []time.Duration
		for round := range 3 {
			runtime.GC() // not in the middle of a measured mask
			took, err := follow(f, strict, v, texts)
			if err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			for k, d := range took {
				if round == 0 {
					best = append(best, d)
				} else {
					best[k] = min(best[k], d)
				}
			}
		}
		first = append(first, best[0])
		masks = append(masks, best[1:]...)
	}
	table := report.Table{Title: fmt.Sprintf("Masks of %d tokens, %d schemas, CPU time, least of three runs, µs",
		v.size, schemas),
		Header: []string{"", "number", "p50", "p75", "p90", "p95", "p99", "most"}}
	row := func(name string, list []time.Duration) {
		slices.Sort(list)
		cells := []any{name, len(list)}
		for _, p := range []float64{0.5, 0.75, 0.9, 0.95, 0.99, 1} {
			cells = append(cells, float64(list[min(len(list)-1, int(p*float64(len(list))))].Nanoseconds())/1e3)
		}
		table.Add(cells...)
	}
	if len(first) == 0 {
		return fmt.Errorf("no schema was accepted")
	}
	row("schema to first mask", first)
	if len(masks) > 0 {
		row("mask of a token", masks)
	}
	table.Write(os.Stdout)
	return nil
}

// follow gives the time from the schema to the first mask, then that of every mask and step.
func follow(f *file, strict bool, v *vocabulary, texts [][]int32) (took []time.Duration, err error) {
	began := spent()
	rules, err := text(f.Schema, strict)
	if err != nil {
		return nil, err
	}
	syntax, err := grammar.Parse(rules)
	if err != nil {
		return nil, err
	}
	g, err := syntax.Compile(v.Vocabulary)
	if err != nil {
		return nil, err
	}
	if _, err := g.Mask(g.Start()); err != nil {
		return nil, err
	}
	took = append(took, spent()-began)
	for _, ids := range texts {
		s := g.Start()
		for _, id := range ids {
			began := spent()
			m, err := g.Mask(s)
			if err != nil {
				return nil, err
			}
			next := g.Advance(s, id)
			took = append(took, spent()-began)
			if m.Allows(id) != (next != nil) {
				return nil, fmt.Errorf("the mask and the step differ at token %d", id)
			}
			if s = next; s == nil {
				break // a valid instance that is not taken
			}
		}
	}
	return took, nil
}
