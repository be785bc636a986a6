package grpcapi

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/accesslog"
	"github.com/tandem-inference/tandem/gateway/internal/apikey"
	"github.com/tandem-inference/tandem/gateway/internal/bodybudget"
	"github.com/tandem-inference/tandem/gateway/internal/metrics"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// ServerOptions attach a turn.Call to the context of every RPC: its id, arrival, and whose key it carries. Where there
// are keys, an RPC without a valid one is refused; health checks and reflection stay open. Keys come as the metadata
// "authorization: Bearer KEY", "x-api-key: KEY" or "api-key: KEY". The codec counts what messages take of the budget.
func (s *Service) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)}),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
			h grpc.UnaryHandler) (any, error) {
			ctx, err := s.enter(ctx, info.FullMethod)
			var answer any
			if err == nil {
				answer, err = h(ctx, req)
			}
			s.leave(ctx, info.FullMethod, err)
			return answer, err
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
			h grpc.StreamHandler) error {
			ctx, err := s.enter(ss.Context(), info.FullMethod)
			share := s.bodies.Share()
			defer share.Release()
			if err == nil {
				err = h(srv, &callStream{ss, ctx, share})
			}
			s.leave(ctx, info.FullMethod, err)
			return err
		}),
	}
}

// enter makes the call of an RPC and checks its key.
func (s *Service) enter(ctx context.Context, method string) (context.Context, error) {
	call := &turn.Call{ID: requestID(ctx), Arrived: time.Now()}
	md, _ := metadata.FromIncomingContext(ctx)
	k, ok := s.keys.Find(apikey.Presented(md.Get))
	if ok {
		call.Scope, call.Key, call.Trusted = k.Scope(), k.Name, k.Trusted
	}
	ctx = turn.WithCall(ctx, call)
	if !ok && !s.keys.Open() && !standard(method) {
		return ctx, status.Error(codes.Unauthenticated, "missing or wrong API key")
	}
	if len(md.Get("x-priority")) > 0 && !call.Trusted {
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-tandem-warning", "priority-ignored"))
	}
	return ctx, nil
}

// standard reports whether a method is one of the services that every port has.
func standard(method string) bool {
	return strings.HasPrefix(method, "/grpc.health.") || strings.HasPrefix(method, "/grpc.reflection.")
}

// leave logs an RPC that is over.
func (s *Service) leave(ctx context.Context, method string, err error) {
	if standard(method) {
		return
	}
	address := ""
	if p, ok := peer.FromContext(ctx); ok {
		address = p.Addr.String()
	}
	accesslog.Write(ctx, s.log, accesslog.Entry{
		Method: "RPC", Endpoint: strings.TrimPrefix(method, "/"), Client: address,
		Code: rpcerr.Code(err).String(), Outcome: metrics.OutcomeOf(err),
		Reason: strings.ToLower(rpcerr.Reason(err)), Err: err,
	})
}

// callStream is a stream whose context holds its call and whose messages are counted.
type callStream struct {
	grpc.ServerStream
	ctx   context.Context
	share *bodybudget.Share
}

// RecvMsg implements grpc.ServerStream.
func (s *callStream) RecvMsg(m any) error {
	l := &limited{msg: m, share: s.share}
	if err := s.ServerStream.RecvMsg(l); err != nil {
		return err
	}
	return l.err
}

// Context implements grpc.ServerStream.
func (s *callStream) Context() context.Context { return s.ctx }

// asker fills in who asks and how urgent it is, by the rules of HTTP.
func asker(ctx context.Context, in *tandemv1.GenerateRequest, req *turn.Request) error {
	if n := len(in.GetSessionId()); n > turn.MaxSessionID {
		return rpcerr.InvalidArgument("session_id", "has %d bytes, at most %d are allowed", n, turn.MaxSessionID)
	}
	header := func(name string) string {
		if v := metadata.ValueFromIncomingContext(ctx, name); len(v) > 0 {
			return v[0]
		}
		return ""
	}
	req.SessionID = in.GetSessionId()
	if id := header("x-session-id"); len(id) <= turn.MaxSessionID {
		req.SessionID = cmp.Or(req.SessionID, id)
	}
	call := turn.CallFrom(ctx)
	address := ""
	if p, ok := peer.FromContext(ctx); ok {
		address = p.Addr.String()
	}
	req.Owner = call.Scope
	req.Share, req.Priority = turn.Share(call.Scope, req.SessionID, address),
		turn.Priority(call.Trusted, header("x-priority"))
	return nil
}
