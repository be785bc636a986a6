package grpcapi

import (
	"cmp"
	"context"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

type scopeKey struct{}

// Authenticate returns interceptors that ask for a key in the metadata "authorization: Bearer KEY" or "x-api-key: KEY". Health
// checks and reflection stay open. What scope makes of the key tells its clients from others.
func Authenticate(valid func(secret string) bool, scope func(secret string) string) []grpc.ServerOption {
	check := func(ctx context.Context, method string) (context.Context, error) {
		if strings.HasPrefix(method, "/grpc.health.") || strings.HasPrefix(method, "/grpc.reflection.") {
			return ctx, nil
		}
		for _, secret := range secrets(ctx) {
			if valid(secret) {
				return context.WithValue(ctx, scopeKey{}, scope(secret)), nil
			}
		}
		return nil, status.Error(codes.Unauthenticated, "missing or wrong API key")
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			ctx, err := check(ctx, info.FullMethod)
			if err != nil {
				return nil, err
			}
			return h(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			ctx, err := check(ss.Context(), info.FullMethod)
			if err != nil {
				return err
			}
			return h(srv, &scopedStream{ss, ctx})
		}),
	}
}

// secrets are the keys that a caller presents.
func secrets(ctx context.Context) []string {
	md, _ := metadata.FromIncomingContext(ctx)
	out := md.Get("x-api-key")
	for _, v := range md.Get("authorization") {
		if scheme, token, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "Bearer") {
			out = append(out, strings.TrimSpace(token))
		}
	}
	return out
}

// scopedStream is a stream whose context knows the key.
type scopedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s *scopedStream) Context() context.Context { return s.ctx }

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
	scope, _ := ctx.Value(scopeKey{}).(string)
	address := ""
	if p, ok := peer.FromContext(ctx); ok {
		address = p.Addr.String()
	}
	req.Share, req.Priority = turn.Share(scope, req.SessionID, address), turn.Priority(header("x-priority"))
	return nil
}
