package turn

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tandem-inference/tandem/gateway/internal/chat"
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/toolcall"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/prefixhash"
	"github.com/tandem-inference/tandem/services/telemetry"
)

// Ahead lets idle workers read prompts; *cluster.Pool implements it.
type Ahead interface {
	// ReadAhead queues a prompt for a worker to read.
	ReadAhead(ctx context.Context, worker string, m *tandemv1.ReadAheadRequest) error
}

const (
	// mostExpected bounds the answers whose next prompt waits to be rendered; those beyond are not read ahead.
	mostExpected = 16
	// mostHeard bounds the text of an answer that is kept for it, in bytes.
	mostHeard = 4 << 20
	// aheadTimeout bounds the call to the worker, which answers at once.
	aheadTimeout = 5 * time.Second
)

// expectation is an answer after which another prompt is expected.
type expectation struct {
	model      *model.Model
	request    *Request // the conversation before the answer
	answer     chat.Message
	worker     string
	id         string
	cacheScope string
}

// chat returns the request if its next prompt can be predicted: a conversation with one choice, whose last message is
// not one that the answer continues.
func (s *Service) chat(req *Request, conv *chat.Conversation) *Request {
	if s.ahead == nil || req.N > 1 || req.NoCache || conv.Prefill() {
		return nil
	}
	return req
}

// listener is a sink that keeps the text sent to the client.
type listener struct {
	generate.Sink
	content, reasoning []byte
	calls              []*toolcall.Call
	cut                bool // it was too long to be kept
}

// listen wraps the sink of a request whose next prompt is to be read ahead.
func (s *Service) listen(p *Prepared, sink generate.Sink) generate.Sink {
	if p.chat == nil {
		return sink
	}
	return &listener{Sink: sink}
}

// Delta implements generate.Sink.
func (l *listener) Delta(index int, d generate.Delta) error {
	for _, ev := range d.Events {
		switch {
		case len(l.content)+len(l.reasoning) > mostHeard:
			l.cut = true
		case ev.Kind == emit.Reasoning:
			l.reasoning = append(l.reasoning, ev.Text...)
		case ev.Kind == emit.Content:
			l.content = append(l.content, ev.Text...)
		}
	}
	return l.Sink.Delta(index, d)
}

// Done implements generate.Sink.
func (l *listener) Done(index int, c generate.Choice) error {
	l.calls = c.ToolCalls
	return l.Sink.Done(index, c)
}

// message is the answer as the client sends it back. The history shows whether the client returns reasoning; without a
// history the dialect's rule holds.
func (l *listener) message(req *Request) chat.Message {
	msg := chat.Message{Role: chat.RoleAssistant, Content: string(l.content)}
	returns := req.ReturnsReasoning
	for _, m := range req.Messages {
		if m.Role == chat.RoleAssistant {
			returns = m.HasReasoning
		}
	}
	if returns && len(l.reasoning) > 0 {
		msg.Reasoning, msg.HasReasoning = string(l.reasoning), true
	}
	for _, c := range l.calls {
		msg.ToolCalls = append(msg.ToolCalls, chat.ToolCall{
			ID: c.ID, Name: c.Name, Arguments: chat.ParseArguments(c.Arguments),
		})
	}
	return msg
}

// expect notes that an answer is out and another prompt of the conversation may come.
func (s *Service) expect(p *Prepared, l *listener, u *generate.Usage) {
	if l.cut || u.Worker == "" || u.Compression != nil && u.Compression.Applied {
		return
	}
	select {
	case s.expected <- &expectation{
		model: p.Run.Model, request: p.chat, answer: l.message(p.chat), worker: u.Worker, id: p.Run.ID,
		cacheScope: p.Run.CacheScope,
	}:
	default: // a gateway that is so far behind has no idle time
	}
}

// RunAhead renders the expected prompts until ctx is done.
func (s *Service) RunAhead(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case x := <-s.expected:
			if err := s.readAhead(ctx, x); err != nil {
				s.log.Debug("a prompt is not read ahead", zap.String(telemetry.KeyRequestID, x.id),
					zap.NamedError(telemetry.KeyErr, err))
			}
		}
	}
}

// readAhead lets a worker read the part of the next prompt that does not depend on the client's next message.
func (s *Service) readAhead(ctx context.Context, x *expectation) error {
	var next [2][]int32
	for i, text := range []string{"A", "Z"} {
		tokens, err := s.nextPrompt(x, text)
		if err != nil {
			return err
		}
		next[i] = tokens
	}
	n := prefixhash.Common(next[0], next[1])
	if n == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, aheadTimeout)
	defer cancel()
	return s.ahead.ReadAhead(ctx, x.worker, &tandemv1.ReadAheadRequest{
		RequestId: x.id, PromptTokens: next[0][:n], Isolation: x.cacheScope,
	})
}

// nextPrompt returns the prompt in which text follows the answer, as the client's message or as the results of
// its calls.
func (s *Service) nextPrompt(x *expectation, text string) ([]int32, error) {
	req := *x.request
	req.Messages = append(slices.Clip(req.Messages), x.answer)
	for _, c := range x.answer.ToolCalls {
		req.Messages = append(req.Messages, chat.Message{Role: chat.RoleTool, ToolCallID: c.ID, Name: c.Name, Content: text})
	}
	if len(x.answer.ToolCalls) == 0 {
		req.Messages = append(req.Messages, chat.Message{Role: chat.RoleUser, Content: text})
	}
	conv, err := s.conversation(x.model, &req)
	if err != nil {
		return nil, err
	}
	r, err := render(x.model, conv, s.longestPrompt(x.model, &req))
	if err != nil {
		return nil, err
	}
	return r.Tokens, nil
}
