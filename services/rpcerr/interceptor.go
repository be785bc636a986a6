package rpcerr

import (
	"context"
	"runtime/debug"

	"google.golang.org/grpc"
)

// PanicHandler is told of a panic in a handler, with its stack.
type PanicHandler func(method string, value any, stack []byte)

// ServerOptions chains interceptors that turn errors of handlers into statuses and panics into INTERNAL. onPanic may be
// nil. Streams are passed through unwrapped: messages cost nothing.
func ServerOptions(onPanic PanicHandler) []grpc.ServerOption {
	guard := func(method string, err *error) {
		if v := recover(); v != nil {
			if onPanic != nil {
				onPanic(method, v, debug.Stack())
			}
			*err = Internal("panic in %s", method).GRPCStatus().Err()
		}
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
			next grpc.UnaryHandler) (resp any, err error) {
			defer guard(info.FullMethod, &err)
			resp, err = next(ctx, req)
			return resp, ToStatus(err)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
			next grpc.StreamHandler) (err error) {
			defer guard(info.FullMethod, &err)
			return ToStatus(next(srv, stream))
		}),
	}
}

// DialOptions chains interceptors that turn statuses into *Error.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return FromRPC(call(ctx, method, req, reply, cc, opts...))
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			if err != nil {
				return nil, FromRPC(err)
			}
			return clientStream{s}, nil
		}),
	}
}

type clientStream struct{ grpc.ClientStream }

func (s clientStream) SendMsg(m any) error { return FromRPC(s.ClientStream.SendMsg(m)) }
func (s clientStream) RecvMsg(m any) error { return FromRPC(s.ClientStream.RecvMsg(m)) }
func (s clientStream) CloseSend() error    { return FromRPC(s.ClientStream.CloseSend()) }
