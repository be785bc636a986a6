package grpcapi

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Authenticate returns interceptors that ask for a key in the metadata "authorization: Bearer KEY" or "x-api-key: KEY". Health
// checks and reflection stay open.
func Authenticate(valid func(secret string) bool) []grpc.ServerOption {
	check := func(ctx context.Context, method string) error {
		if strings.HasPrefix(method, "/grpc.health.") || strings.HasPrefix(method, "/grpc.reflection.") {
			return nil
		}
		md, _ := metadata.FromIncomingContext(ctx)
		for _, v := range md.Get("x-api-key") {
			if valid(v) {
				return nil
			}
		}
		for _, v := range md.Get("authorization") {
			if scheme, token, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "Bearer") && valid(strings.TrimSpace(token)) {
				return nil
			}
		}
		return status.Error(codes.Unauthenticated, "missing or wrong API key")
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			if err := check(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return h(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			if err := check(ss.Context(), info.FullMethod); err != nil {
				return err
			}
			return h(srv, ss)
		}),
	}
}
