package grpcapi

import (
	"context"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/compress"
	"github.com/tandem-inference/tandem/gateway/internal/emit"
	"github.com/tandem-inference/tandem/gateway/internal/generate"
	"github.com/tandem-inference/tandem/gateway/internal/metrics"
	"github.com/tandem-inference/tandem/gateway/internal/model"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/sampling"
	"github.com/tandem-inference/tandem/services/tokenizer"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// Generate implements the service.
func (s *Service) Generate(in *tandemv1.GenerateRequest, stream tandemv1.InferenceService_GenerateServer) (err error) {
	ctx := stream.Context()
	if s.metrics != nil {
		end := s.metrics.Start(ctx, "grpc/Generate", turn.CallFrom(ctx).Key)
		defer func() { end(metrics.OutcomeOf(err)) }()
	}
	if s.draining != nil && s.draining() {
		return rpcerr.Draining
	}
	m, err := s.served(ctx, in.GetModel())
	if err != nil {
		return err
	}
	turn.CallFrom(ctx).Model = m.Name
	req, err := s.request(ctx, in, m)
	if err != nil {
		return err
	}
	if s.cfg.RequestTimeout > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, s.cfg.RequestTimeout)
		defer stop()
	}
	sink := &sink{stream: stream, tokens: req.Run.RawTokens, warnings: req.Warnings}
	req.Run.Compressed = func(c *compress.Report) {
		if w := turn.CompressionWarning(c); w != "" {
			sink.warnings = append(sink.warnings, w)
		}
	}
	u, err := s.turn.Run(ctx, req, sink)
	turn.CallFrom(ctx).Usage = u
	if u != nil && s.metrics != nil {
		s.metrics.Generated(ctx, u.Generation())
	}
	if err != nil {
		return toRPC(err)
	}
	return stream.Send(sink.last(u))
}

// request converts and checks a request.
func (s *Service) request(ctx context.Context, in *tandemv1.GenerateRequest, m *model.Model) (*turn.Prepared, error) {
	if err := sampling.Check(in.GetSampling(), m.Tokenizer.VocabSize()); err != nil {
		return nil, err
	}
	if err := checkSpeculation(in.GetSpeculation()); err != nil {
		return nil, err
	}
	if in.GetMaxTokens() < 0 {
		return nil, rpcerr.InvalidArgument("max_tokens", "must not be negative, got %d", in.GetMaxTokens())
	}
	if len(in.GetStop()) > turn.MaxStops {
		return nil, rpcerr.InvalidArgument("stop",
			"has %d entries, at most %d are allowed", len(in.GetStop()), turn.MaxStops)
	}
	for _, w := range in.GetStop() {
		if len(w) < 1 || len(w) > turn.MaxStopBytes {
			return nil, rpcerr.InvalidArgument("stop",
				"entries must have 1 to %d bytes, got %d", turn.MaxStopBytes, len(w))
		}
	}
	call := turn.CallFrom(ctx)
	// The caller's message is not changed by what is filled in.
	filled := &tandemv1.Sampling{}
	proto.Merge(filled, in.GetSampling())
	s.turn.FillSampling(filled, m)
	req := &turn.Request{
		ID: call.ID, Model: m.Name, Arrived: call.Arrived, N: 1, Sampling: filled, MaxTokens: int(in.GetMaxTokens()),
		MaxTokensGiven: in.GetMaxTokens() > 0, Stops: in.GetStop(), Speculation: in.GetSpeculation(),
		TopLogprobs: generate.NoLogprobs, Format: format(in.GetFormat()),
	}
	if err := asker(ctx, in, req); err != nil {
		return nil, err
	}
	if in.TopLogprobs != nil {
		if n := in.GetTopLogprobs(); n < -1 || n > turn.MaxTopLogprobs {
			return nil, rpcerr.InvalidArgument("top_logprobs",
				"must be between -1 and %d, got %d", turn.MaxTopLogprobs, n)
		}
		req.TopLogprobs = int(in.GetTopLogprobs())
	}
	p, err := s.prepare(in, m, req)
	if err != nil {
		return nil, err
	}
	p.Run.RawTokens = p.Run.RawTokens || req.TopLogprobs != generate.NoLogprobs
	if paths := unread(in); len(paths) > 0 {
		p.Warnings = append(p.Warnings, turn.FieldsIgnored(paths))
	}
	return p, nil
}

// prepare reads the input.
func (s *Service) prepare(in *tandemv1.GenerateRequest, m *model.Model, req *turn.Request) (*turn.Prepared, error) {
	if input := in.GetChat(); input != nil {
		if err := s.chat(input, in.GetCompression(), req); err != nil {
			return nil, err
		}
		p, err := s.turn.Prepare(m, req)
		if err != nil {
			return nil, toRPC(err)
		}
		return p, nil
	}
	if in.GetCompression() != nil {
		return nil, rpcerr.InvalidArgument("compression", "is for chats: a raw prompt has no turns to shorten")
	}
	if k := req.Format.Kind; k != turn.FormatText && k != turn.FormatGrammar {
		return nil, rpcerr.InvalidArgument("format", "of a raw prompt can only be a grammar")
	}
	if err := s.turn.Check(); err != nil {
		return nil, toRPC(err)
	}
	p := s.turn.Raw(m, req)
	if err := s.turn.Constraint(m, req, p); err != nil {
		return nil, toRPC(err)
	}
	var prompt generate.Prompt
	switch input := in.GetInput().(type) {
	case *tandemv1.GenerateRequest_Prompt:
		if err := s.turn.CheckLength(m, input.Prompt); err != nil {
			return nil, toRPC(err)
		}
		prompt.Tokens = m.Tokenizer.Encode(input.Prompt, tokenizer.Options{ParseSpecial: true})
	case *tandemv1.GenerateRequest_Tokens:
		if err := checkTokens("tokens.ids", input.Tokens.GetIds(), m.Tokenizer.VocabSize()); err != nil {
			return nil, err
		}
		prompt.Tokens, p.Run.RawTokens = input.Tokens.GetIds(), true
	}
	if len(prompt.Tokens) == 0 {
		return nil, rpcerr.InvalidArgument("input", "is required and must not be empty")
	}
	p.Run.Prompts = []generate.Prompt{prompt}
	return p, nil
}

// checkSpeculation checks ranges, those of HTTP.
func checkSpeculation(in *tandemv1.Speculation) error {
	if _, ok := tandemv1.SpeculationMode_name[int32(in.GetMode())]; !ok {
		return rpcerr.InvalidArgument("speculation.mode", "%d is no mode", in.GetMode())
	}
	for field, n := range map[string]int32{"budget": in.GetBudget(), "block": in.GetBlock()} {
		if n < 0 || n > turn.MaxSpeculation {
			return rpcerr.InvalidArgument("speculation."+field, "must be between 0 and %d, got %d", turn.MaxSpeculation, n)
		}
	}
	return nil
}

// sink sends output as messages of the stream.
type sink struct {
	stream tandemv1.InferenceService_GenerateServer
	tokens bool
	// warnings go out in the metadata key x-tandem-warning.
	warnings []string
	end      generate.Choice
}

// Admitted implements generate.Sink: the headers tell the caller that a worker took the request, and what of it was
// left out.
func (s *sink) Admitted() error {
	return s.stream.SendHeader(metadata.MD{"x-tandem-warning": s.warnings})
}

// Prompt implements generate.Sink; the service has no prompt log-probabilities.
func (s *sink) Prompt(int, []*tandemv1.PositionLogprobs) error { return nil }

// Delta implements generate.Sink. A message holds text and what calls follow it; text after a call begins a new one.
func (s *sink) Delta(_ int, d generate.Delta) error {
	msg := &tandemv1.GenerateResponse{}
	for _, ev := range d.Events {
		if len(msg.ToolCalls) > 0 && ev.Call == nil {
			if err := s.stream.Send(msg); err != nil {
				return err
			}
			msg = &tandemv1.GenerateResponse{}
		}
		switch ev.Kind {
		case emit.Reasoning:
			msg.Reasoning += string(ev.Text)
		case emit.Content:
			msg.Text += string(ev.Text)
		case emit.ToolStart:
			msg.ToolCalls = append(msg.ToolCalls,
				&tandemv1.ToolCallDelta{Index: int32(ev.Call.Index), Id: ev.Call.ID, Name: ev.Call.Name})
		case emit.ToolArgs:
			msg.ToolCalls = append(msg.ToolCalls,
				&tandemv1.ToolCallDelta{Index: int32(ev.Call.Index), Arguments: string(ev.Text)})
		case emit.ToolEnd:
			msg.ToolCalls = append(msg.ToolCalls, &tandemv1.ToolCallDelta{Index: int32(ev.Call.Index), Done: true})
		}
	}
	if s.tokens {
		for _, e := range d.Raw {
			msg.Tokens = append(msg.Tokens, outputToken(e))
		}
	}
	return s.stream.Send(msg)
}

func outputToken(e emit.Entry) *tandemv1.OutputToken {
	t := &tandemv1.OutputToken{Id: e.ID, Logprob: float32(e.Logprob)}
	for _, c := range e.Top {
		t.Top = append(t.Top, &tandemv1.TokenLogprob{Token: c.ID, Logprob: float32(c.Logprob)})
	}
	return t
}

// Done implements generate.Sink.
func (s *sink) Done(_ int, c generate.Choice) error {
	s.end = c
	return nil
}

// last is the closing message.
func (s *sink) last(u *generate.Usage) *tandemv1.GenerateResponse {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	msg := &tandemv1.GenerateResponse{
		FinishReason: tandemv1.FinishReason_FINISH_REASON_STOP, StopSequence: s.end.StopString,
		ToolParseError: s.end.ToolParseError,
		Usage: &tandemv1.Usage{PromptTokens: int64(u.PromptTokens), CompletionTokens: int64(u.CompletionTokens),
			ReasoningTokens: int64(u.ReasoningTokens), CachedTokens: int64(u.CachedTokens),
			Contract: strings.Join(u.Contracts, ","), ContractChanges: int32(u.ContractChanges)},
		Timings: &tandemv1.Timings{QueueMs: ms(u.Queue), CompressMs: ms(u.Compress), RestoreMs: ms(u.Restore),
			PrefillMs: ms(u.Prefill),
			TtftMs:    ms(u.TTFT), DecodeMs: ms(u.Decode), TotalMs: ms(u.Total), VerifySteps: u.VerifySteps,
			DraftedTokens: u.Drafted, AcceptedTokens: u.Accepted, SpeculationDegraded: u.Degraded,
			LookupDraftedTokens: u.LookupDrafted, LookupAcceptedTokens: u.LookupAccepted},
	}
	switch s.end.Finish {
	case generate.FinishLength:
		msg.FinishReason = tandemv1.FinishReason_FINISH_REASON_LENGTH
	case generate.FinishToolCalls:
		msg.FinishReason = tandemv1.FinishReason_FINISH_REASON_TOOL_CALLS
	}
	if c := u.Compression; c != nil && c.Applied {
		msg.Usage.CompressedTokens = int64(c.OriginalTokens - c.KeptTokens)
	}
	return msg
}
