package tensorwire

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// Limits and sizes of every channel that carries tensors, the plugin's included. Fixed windows switch off gRPC's own
// bandwidth estimation, which costs round trips at the start and pings later.
const (
	StreamWindowBytes = 8 << 20
	ConnWindowBytes   = 16 << 20
	bufferBytes       = 256 << 10
	// MaxMessageBytes bounds messages in both directions. The largest are logits of a wide step: 64 rows of 248320 floats
	// are 61 MiB. Everything longer travels in chunks.
	MaxMessageBytes = 128 << 20
	// ChunkBytes is the size of pieces that files and states are sent in.
	ChunkBytes = 1 << 20

	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second
	keepaliveMinTime = 10 * time.Second
)

// ServerOptions for every server that carries tensors.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(NewCodec()),
		grpc.InitialWindowSize(StreamWindowBytes),
		grpc.InitialConnWindowSize(ConnWindowBytes),
		grpc.ReadBufferSize(bufferBytes),
		grpc.WriteBufferSize(bufferBytes),
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.MaxSendMsgSize(MaxMessageBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinTime, PermitWithoutStream: true}),
	}
}

// DialOptions for every client of such servers. Credentials are the caller's.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(NewCodec()),
			grpc.MaxCallRecvMsgSize(MaxMessageBytes),
			grpc.MaxCallSendMsgSize(MaxMessageBytes),
		),
		grpc.WithInitialWindowSize(StreamWindowBytes),
		grpc.WithInitialConnWindowSize(ConnWindowBytes),
		grpc.WithReadBufferSize(bufferBytes),
		grpc.WithWriteBufferSize(bufferBytes),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout,
			PermitWithoutStream: true}),
		// No service configuration from DNS: on a network without a way out (compose.yaml) its TXT query waits 10 s
		// for nobody.
		grpc.WithDisableServiceConfig(),
	}
}
