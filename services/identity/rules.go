package identity

import (
	"context"
	"slices"
	"strings"

	enginev1 "github.com/tandem-inference/tandem/proto/tandem/engine/v1"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// anyone may call a service without a certificate.
const anyone = "anyone"

// rules are the roles that may call a service, by its name. Services that are not here are for nobody.
var rules = map[string][]string{
	healthv1.Health_ServiceDesc.ServiceName:             {anyone},
	tandemv1.CertificateService_ServiceDesc.ServiceName: {anyone}, // asks for a token itself
	tandemv1.RegistryService_ServiceDesc.ServiceName:    Roles,    // compares role and id itself
	tandemv1.TargetService_ServiceDesc.ServiceName:      {Gateway},
	tandemv1.PrefillService_ServiceDesc.ServiceName:     {Gateway},
	tandemv1.TelemetryService_ServiceDesc.ServiceName:   {Gateway, Target},
	tandemv1.DraftService_ServiceDesc.ServiceName:       {Target},
	tandemv1.PeerService_ServiceDesc.ServiceName:        {Target},
	tandemv1.StageService_ServiceDesc.ServiceName:       {Target},
	tandemv1.ModelService_ServiceDesc.ServiceName:       {Target},
	tandemv1.ProbeService_ServiceDesc.ServiceName:       {Gateway, Target, Draft, Prefill},
	// The engine of a stage.
	enginev1.EngineService_ServiceDesc.ServiceName:   {Target},
	enginev1.SequenceService_ServiceDesc.ServiceName: {Target},
	enginev1.TargetService_ServiceDesc.ServiceName:   {Target},
	"grpc.reflection.v1.ServerReflection":            {Gateway, Target, Draft, Prefill},
	"grpc.reflection.v1alpha.ServerReflection":       {Gateway, Target, Draft, Prefill},
}

// Allowed says why the caller of an RPC may not call a method, as a gRPC status.
func Allowed(ctx context.Context, method string) error {
	info, ok := FromContext(ctx)
	if !ok || info.Trusted {
		return nil
	}
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	roles := rules[service]
	switch {
	case slices.Contains(roles, anyone) || slices.Contains(roles, info.Role):
		return nil
	case info.Role == "":
		return status.Errorf(codes.Unauthenticated, "%s: wants the certificate of a worker of this cluster: --certs "+
			"names one, and --join-token gets a worker one", service)
	}
	return status.Errorf(codes.PermissionDenied, "%s: is not for the role %s", service, info.Role)
}

// ServerOptions hold a server to the rules.
func ServerOptions(log *zap.Logger) []grpc.ServerOption {
	refuse := func(ctx context.Context, method string) error {
		err := Allowed(ctx, method)
		if err != nil {
			info, _ := FromContext(ctx)
			log.Warn("call refused", zap.String(telemetry.KeyEndpoint, method), zap.Stringer(telemetry.KeyWorker, info.Identity),
				zap.NamedError(telemetry.KeyErr, err))
		}
		return err
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
			handler grpc.UnaryHandler) (any, error) {
			if err := refuse(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return handler(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
			handler grpc.StreamHandler) error {
			if err := refuse(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return handler(srv, stream)
		}),
	}
}
