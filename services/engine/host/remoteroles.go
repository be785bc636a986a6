package host

import (
	"context"
	"io"

	"google.golang.org/grpc"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	"github.com/tandem-inference/tandem/services/engine"
	"github.com/tandem-inference/tandem/services/engine/border"
	"github.com/tandem-inference/tandem/services/engine/wire"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// targetCalls are those of TargetService.
type targetCalls struct {
	r      *Remote
	client enginev1.TargetServiceClient
	steps  *loop[wire.StepRequest, wire.StepResponse]
	// in and out are where hidden rows may lie that are not sent, set before the first step; nil = nowhere.
	in, out *border.Region
}

func newTargetCalls(r *Remote, conn grpc.ClientConnInterface) (targetCalls, error) {
	c := targetCalls{r: r, client: enginev1.NewTargetServiceClient(conn)}
	open := func(ctx context.Context, o ...grpc.CallOption) (grpc.ClientStream, error) {
		return c.client.Step(ctx, o...)
	}
	var err error
	c.steps, err = newLoop(r, open, func(q *wire.StepRequest, a *wire.StepResponse) (*wire.Request, *wire.Response) {
		return &q.Request, &a.Response
	})
	return c, err
}

// SetSampler implements Target.
func (c *targetCalls) SetSampler(ctx context.Context, s engine.Sequence, sampler engine.Sampler) error {
	_, err := c.client.SetSampler(ctx, &enginev1.SetSamplerRequest{Sequence: int32(s),
		Sampler: engine.SamplerToProto(sampler)})
	return c.r.translate(err)
}

// Step implements Target.
func (c *targetCalls) Step(ctx context.Context, step *engine.Step, result *engine.StepResult) error {
	l, err := c.steps.take(ctx)
	if err != nil {
		return err
	}
	defer func() { c.steps.lines <- l }()
	in := c.share(&l.req, step, result)
	l.req.Step, l.resp.Result = step, result
	err = c.steps.round(ctx, l)
	l.req.Step, l.resp.Result = nil, nil
	step.HiddenIn = in
	result.EngineNanos = l.resp.Nanos
	if err == nil {
		err = c.shared(&l.resp, result)
	}
	return err
}

// SetCapture implements Target.
func (c *targetCalls) SetCapture(ctx context.Context, layers []int32) error {
	m, err := c.client.SetCapture(ctx, &enginev1.SetCaptureRequest{Layers: layers})
	if err != nil {
		return c.r.translate(err)
	}
	c.r.setInfo(m.Info)
	return nil
}

// LoadFuse implements Target.
func (c *targetCalls) LoadFuse(ctx context.Context, path string) error {
	m, err := c.client.LoadFuse(ctx, &enginev1.LoadFuseRequest{Path: path})
	if err != nil {
		return c.r.translate(err)
	}
	c.r.setInfo(m.Info)
	return nil
}

// Fuse implements Target.
func (c *targetCalls) Fuse(ctx context.Context, raw engine.RawFeatures,
	encoding engine.FeatureEncoding) ([]byte, error) {
	m, err := c.client.Fuse(ctx, &enginev1.FuseRequest{
		Rows: raw.Rows, Kind: enginev1.GroupKind(raw.Kind + 1), RawEncoding: raw.Encoding, FusedEncoding: encoding,
		Raw: raw.Data,
	})
	if err != nil {
		return nil, c.r.translate(err)
	}
	return m.Fused, nil
}

// draftCalls are those of DraftService.
type draftCalls struct {
	proposals *loop[wire.ProposeRequest, wire.ProposeResponse]
}

func newDraftCalls(r *Remote, conn grpc.ClientConnInterface) (draftCalls, error) {
	client := enginev1.NewDraftServiceClient(conn)
	open := func(ctx context.Context, o ...grpc.CallOption) (grpc.ClientStream, error) {
		return client.Propose(ctx, o...)
	}
	l, err := newLoop(r, open, func(q *wire.ProposeRequest, a *wire.ProposeResponse) (*wire.Request, *wire.Response) {
		return &q.Request, &a.Response
	})
	return draftCalls{l}, err
}

// Propose implements Draft.
func (c *draftCalls) Propose(ctx context.Context, features []engine.FeatureRows, requests []engine.DraftRequest,
	result *engine.DraftResult) error {
	l, err := c.proposals.take(ctx)
	if err != nil {
		return err
	}
	defer func() { c.proposals.lines <- l }()
	l.req.Features, l.req.Requests, l.resp.Result = features, requests, result
	err = c.proposals.round(ctx, l)
	l.req.Features, l.req.Requests, l.resp.Result = nil, nil, nil
	result.EngineNanos = l.resp.Nanos
	return err
}

// scorerCalls are those of ScoreService.
type scorerCalls struct {
	r      *Remote
	client enginev1.ScoreServiceClient
}

// Score implements Scorer.
func (c *scorerCalls) Score(ctx context.Context, prompts []engine.Prompt, rotated bool,
	progress engine.Progress) ([][]float32, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // frees the stream when we leave before its end
	req := &enginev1.ScoreRequest{Rotated: rotated}
	for _, p := range prompts {
		req.Prompts = append(req.Prompts, &enginev1.Prompt{Ids: p.IDs, QueryRows: p.QueryRows})
	}
	stream, err := c.client.Score(ctx, req)
	if err != nil {
		return nil, c.r.translate(err)
	}
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			return nil, c.r.translate(rpcerr.Internal("the engine ended Score without scores"))
		}
		if err != nil {
			return nil, c.r.translate(err)
		}
		if len(m.Prompts) == 0 {
			if progress != nil {
				progress(m.Done, m.Total)
			}
			continue
		}
		scores := make([][]float32, len(m.Prompts))
		for i, p := range m.Prompts {
			scores[i] = p.Scores
		}
		return scores, nil
	}
}
