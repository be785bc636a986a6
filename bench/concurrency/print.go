package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/tandem-inference/tandem/bench/report"
)

// median of what f gives of the elements that keep returns true for.
func median[T any](list []T, keep func(T) bool, f func(T) float64) float64 {
	var values []float64
	for _, v := range list {
		if keep(v) {
			values = append(values, f(v))
		}
	}
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// print writes medians over the rounds as Markdown.
func (r *results) print(w io.Writer, o options, programs []string) {
	fmt.Fprintln(w, "# Requests at a time\n\n"+r.Machine)
	header := []string{"programs", "mode"}
	for _, n := range o.requests {
		header = append(header, fmt.Sprint(n))
	}
	table := &report.Table{Title: "Tokens a second of all, by requests at a time", Header: header}
	for _, mode := range o.modes {
		for _, name := range programs {
			row := []any{name, mode}
			for _, n := range o.requests {
				row = append(row, median(r.Rates[name], func(v rate) bool { return v.Mode == mode && v.Requests == n },
					func(v rate) float64 { return v.Tokens }))
			}
			table.Add(row...)
		}
	}
	table.Write(w)
	table = &report.Table{
		Title: fmt.Sprintf("Gaps between tokens of %d streams in ms while a prompt of %d tokens is read, setting %d", streams,
			r.Prompt, r.GapMS),
		Header: []string{"programs", "mode", "p50", "p99", "longest", "p50 and p99 without it", "first token of the prompt"},
	}
	for _, mode := range o.modes {
		for _, name := range programs {
			of := func(f func(gaps) float64) float64 {
				return median(r.Gaps[name], func(v gaps) bool { return v.Mode == mode }, f)
			}
			without := fmt.Sprintf("%.1f, %.1f", of(func(v gaps) float64 { return v.Without.P50 }),
				of(func(v gaps) float64 { return v.Without.P99 }))
			table.Add(name, mode, of(func(v gaps) float64 { return v.Beside.P50 }),
				of(func(v gaps) float64 { return v.Beside.P99 }), of(func(v gaps) float64 { return v.Beside.Max }), without,
				of(func(v gaps) float64 { return v.Prompt }))
		}
	}
	table.Write(w)
	table = &report.Table{Title: "A long prompt", Header: []string{
		"programs", "tokens a second alone", "µs of processor time a token alone", "beside streams", "rate kept"}}
	for _, name := range programs {
		all := func(prompts) bool { return true }
		table.Add(name, median(r.Prompts[name], all, func(v prompts) float64 { return v.Alone }),
			median(r.Prompts[name], all, func(v prompts) float64 { return v.AloneUS }),
			median(r.Prompts[name], all, func(v prompts) float64 { return v.BesideUS }),
			median(r.Prompts[name], all, func(v prompts) float64 { return v.Keeps }))
	}
	table.Write(w)
}
