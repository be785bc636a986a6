package identity

import (
	"context"
	"crypto/x509"
	"errors"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mostRequest bounds a request for a certificate; one with an ECDSA key takes some 300 bytes.
const mostRequest = 16 << 10

// Issuer serves CertificateService.
type Issuer struct {
	tandemv1.UnimplementedCertificateServiceServer
	Authority *Authority // nil: there is none
	Logger    *zap.Logger
}

// IssueCertificate implements CertificateService.
func (s *Issuer) IssueCertificate(ctx context.Context, req *tandemv1.IssueCertificateRequest) (
	*tandemv1.IssueCertificateResponse, error,
) {
	if s.Authority == nil {
		return nil, status.Error(codes.Unimplemented, "this gateway has no authority (--authority) that issues certificates")
	}
	if len(req.GetRequest()) > mostRequest {
		return nil, status.Errorf(codes.InvalidArgument, "request: has %d bytes, at most %d are read",
			len(req.GetRequest()), mostRequest)
	}
	var chain [][]byte
	var roots []*x509.Certificate
	var err error
	who := Identity{req.GetRole(), req.GetWorkerId()}
	if req.GetJoinToken() != "" {
		chain, roots, err = s.Authority.Redeem(req.GetRequest(), req.GetJoinToken(), who)
	} else {
		info, _ := FromContext(ctx)
		if who = info.Identity; who.Role == "" {
			return nil, status.Error(codes.Unauthenticated, "a certificate is given for a join token or for a certificate")
		}
		chain, roots, err = s.Authority.Renew(req.GetRequest(), who)
	}
	if err != nil {
		s.Logger.Warn("certificate refused", zap.Stringer(telemetry.KeyWorker, who), zap.NamedError(telemetry.KeyErr, err))
		if errors.Is(err, errAsk) {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	s.Logger.Info("certificate issued", zap.Stringer(telemetry.KeyWorker, who))
	reply := &tandemv1.IssueCertificateResponse{Chain: chain}
	for _, c := range roots {
		reply.Roots = append(reply.Roots, c.Raw)
	}
	return reply, nil
}
