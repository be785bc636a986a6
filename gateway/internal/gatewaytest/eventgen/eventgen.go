// Package eventgen draws random outputs of a generation, for tests of dialects.
package eventgen

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	"pgregory.net/rapid"
)

// Output is a random output: events in groups, as they come from steps of a worker, and the end.
type Output struct {
	Steps  [][]emit.Event
	Choice generate.Choice
	Usage  generate.Usage
}

// Draw makes an output of reasoning, text and calls of functions, custom tools and tools of a namespace. The limit may
// cut off the last call.
func Draw(t *rapid.T) Output {
	var events []emit.Event
	text := rapid.StringMatching(`[a-z"\\\n <>{}é日]{1,12}`)
	pieces := func(kind emit.Kind) {
		for range rapid.IntRange(0, 3).Draw(t, "pieces") {
			events = append(events, emit.Event{Kind: kind, Text: []byte(text.Draw(t, "text"))})
		}
	}
	pieces(emit.Reasoning)
	pieces(emit.Content)
	calls := rapid.IntRange(0, 3).Draw(t, "calls")
	last := 0 // where the last call begins
	for i := range calls {
		last = len(events)
		events = append(events, call(t, i)...)
		pieces(emit.Content)
	}
	out := Output{Choice: generate.Choice{Finish: generate.FinishStop},
		Usage: generate.Usage{PromptTokens: 20, CachedTokens: 8, CompletionTokens: 9}}
	switch {
	case rapid.Bool().Draw(t, "length"):
		out.Choice.Finish = generate.FinishLength
		if calls > 0 && rapid.Bool().Draw(t, "cut call") {
			n := slices.IndexFunc(events[last:], func(ev emit.Event) bool { return ev.Kind == emit.ToolEnd })
			events = events[:last+rapid.IntRange(1, n).Draw(t, "events")]
		}
	case calls > 0:
		out.Choice.Finish = generate.FinishToolCalls
	case rapid.Bool().Draw(t, "stop"):
		out.Choice.StopString = "STOP"
	}
	for len(events) > 0 {
		n := rapid.IntRange(1, len(events)).Draw(t, "step")
		out.Steps = append(out.Steps, events[:n])
		events = events[n:]
	}
	return out
}

// call draws one tool call with its arguments cut at random places.
func call(t *rapid.T, index int) []emit.Event {
	tool := &toolcall.Tool{Name: "read"}
	key := "path"
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 1:
		tool, key = &toolcall.Tool{Name: "patch", Kind: toolcall.Custom}, toolcall.InputKey
	case 2:
		tool = &toolcall.Tool{Name: toolcall.Join("files", "read"), Namespace: "files", Local: "read"}
	}
	args, err := json.Marshal(map[string]string{key: rapid.String().Draw(t, "argument")})
	if err != nil {
		panic(err)
	}
	c := &toolcall.Call{Index: index, ID: fmt.Sprintf("call_%d", index), Name: tool.Name, Tool: tool,
		Arguments: string(args)}
	events := []emit.Event{{Kind: emit.ToolStart, Call: c}}
	runes := []rune(string(args))
	for len(runes) > 0 {
		n := rapid.IntRange(1, len(runes)).Draw(t, "cut")
		events = append(events, emit.Event{Kind: emit.ToolArgs, Call: c, Text: []byte(string(runes[:n]))})
		runes = runes[n:]
	}
	return append(events, emit.Event{Kind: emit.ToolEnd, Call: c})
}

// Play hands an output to a sink.
func (o *Output) Play(sink generate.Sink) error {
	if err := sink.Admitted(); err != nil {
		return err
	}
	for _, step := range o.Steps {
		if err := sink.Delta(0, generate.Delta{Events: step}); err != nil {
			return err
		}
	}
	return sink.Done(0, o.Choice)
}
