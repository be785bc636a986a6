package gatewaytest

import (
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/protobuf/proto"
)

// Script is a fake generation: tokens in steps, after the tokens that were committed before.
type Script struct {
	Tokens []int32
	// Step is the number of tokens per message, 0 = 1.
	Step int
	// Stop is the token that ends it; 0 = end by length when the tokens run out.
	Stop int32
	// Logprobs gives every token -0.5 and as many candidates as asked for.
	Logprobs bool
	// Cached and Saved tokens of the prompt are reported, unless the request keeps from the prefix cache.
	Cached, Saved int32
	// Before runs before the message with token i; an error ends the stream with it.
	Before func(i int, stream tandemv1.TargetService_DecodeServer) error
}

// Run plays the script.
func (s Script) Run(req *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) error {
	send := func(r *tandemv1.DecodeResponse) error { return stream.Send(r) }
	admitted := &tandemv1.DecodeResponse_Admitted{Admitted: &tandemv1.Admitted{WorkerId: "fake"}}
	if err := send(&tandemv1.DecodeResponse{Event: admitted}); err != nil {
		return err
	}
	if s.Before != nil {
		if err := s.Before(-1, stream); err != nil {
			return err
		}
	}
	pre := &tandemv1.Prefilled{Tokens: int32(len(req.GetPromptTokens()))}
	if !req.GetCache().GetOff() {
		pre.CachedTokens, pre.SavedTokens = s.Cached, s.Saved
	}
	if req.GetPromptLogprobs() {
		for _, id := range req.GetPromptTokens()[1:] {
			pre.Logprobs = append(pre.Logprobs, logprobs(id, req.GetTopLogprobs()))
		}
	}
	if err := send(&tandemv1.DecodeResponse{Event: &tandemv1.DecodeResponse_Prefilled{Prefilled: pre}}); err != nil {
		return err
	}
	limit := min(len(s.Tokens), int(req.GetMaxTokens()))
	step := max(1, s.Step)
	steps := int64(0)
	for i := len(req.GetCommittedTokens()); i < limit; {
		if s.Before != nil {
			if err := s.Before(i, stream); err != nil {
				return err
			}
		}
		n := min(step, limit-i)
		c := &tandemv1.Committed{Tokens: s.Tokens[i : i+n]}
		if req.GetTopLogprobs() >= 0 {
			for _, id := range c.Tokens {
				c.Logprobs = append(c.Logprobs, logprobs(id, req.GetTopLogprobs()))
			}
		}
		steps++
		if err := send(&tandemv1.DecodeResponse{Event: &tandemv1.DecodeResponse_Committed{Committed: c}}); err != nil {
			return err
		}
		i += n
	}
	accepted := max(0, int64(limit)-steps)
	fin := &tandemv1.Finished{Reason: tandemv1.FinishReason_FINISH_REASON_LENGTH, Timings: &tandemv1.Timings{
		PrefillMs: 2, DecodeMs: 10, VerifySteps: steps, DraftedTokens: max(3*steps, accepted), AcceptedTokens: accepted,
		LookupDraftedTokens: steps, LookupAcceptedTokens: min(1, accepted)}}
	if limit == len(s.Tokens) && s.Stop != 0 {
		fin.Reason, fin.StopToken = tandemv1.FinishReason_FINISH_REASON_STOP, proto.Int32(s.Stop)
	}
	return send(&tandemv1.DecodeResponse{Event: &tandemv1.DecodeResponse_Finished{Finished: fin}})
}

func logprobs(id, top int32) *tandemv1.PositionLogprobs {
	p := &tandemv1.PositionLogprobs{Logprob: -0.5}
	for i := range top {
		p.Top = append(p.Top, &tandemv1.TokenLogprob{Token: (id + i) % 8000, Logprob: -0.5 - float32(i)})
	}
	return p
}
