package turn

import (
	"slices"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/chattemplate"
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
)

// remember restores the text in which the model wrote the calls of a history, and the reasoning of their turns that a
// client did not send back (docs/spec/http-api.md §6.6). msgs is not changed.
func (s *Service) remember(m *model.Model, scope string, msgs []chat.Message) []chat.Message {
	if s.memory == nil {
		return msgs
	}
	out := slices.Clone(msgs)
	for i := range out {
		msg := &out[i]
		if len(msg.ToolCalls) == 0 {
			continue
		}
		msg.ToolCalls = slices.Clone(msg.ToolCalls)
		for k := range msg.ToolCalls {
			c := &msg.ToolCalls[k]
			args, err := chattemplate.ToJSON(c.Arguments)
			if err != nil {
				continue
			}
			w := s.memory.Get(scope, c.ID, c.Name, args)
			if w == nil {
				continue
			}
			if m.TakesWritten {
				c.Written, c.Gap = w.Raw, w.Gap
			}
			if !msg.HasReasoning && w.Reasoning != "" {
				msg.Reasoning, msg.HasReasoning = w.Reasoning, true
			}
		}
	}
	return out
}

// recorder is a sink that puts complete calls into the memory.
type recorder struct {
	generate.Sink
	memory    *toolcall.Memory
	scope     string
	reasoning [][]byte // by choice; each is touched by its choice only
}

// record wraps the sink of a request that has tools.
func (s *Service) record(p *Prepared, sink generate.Sink) generate.Sink {
	run := p.Run
	if s.memory == nil || run.Tools == nil {
		return sink
	}
	return &recorder{
		Sink: sink, memory: s.memory, scope: p.scope, reasoning: make([][]byte, len(run.Prompts)*max(1, run.N)),
	}
}

// Delta implements generate.Sink.
func (r *recorder) Delta(index int, d generate.Delta) error {
	for _, ev := range d.Events {
		switch ev.Kind {
		case emit.Reasoning:
			r.reasoning[index] = append(r.reasoning[index], ev.Text...)
		case emit.ToolEnd:
			r.memory.Put(r.scope, ev.Call, string(r.reasoning[index]))
		}
	}
	return r.Sink.Delta(index, d)
}
