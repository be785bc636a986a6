package workernode

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/testwait"
)

// TestCertificateIsRenewedWhileFetching: a worker that waits for its model long keeps a certificate that is good.
func TestCertificateIsRenewedWhileFetching(t *testing.T) {
	const life = time.Minute // less than the allowance for clocks: always due
	a, err := identity.Init(filepath.Join(t.TempDir(), "authority"), "gateway", life)
	if err != nil {
		t.Fatal(err)
	}
	head, err := identity.NewHead(a, "gateway", zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(append(identity.ServerOptions(zap.NewNop()),
		grpc.Creds(identity.Transport{Source: head.Source()}.Server()))...)
	tandemv1.RegisterCertificateServiceServer(g, &identity.Issuer{Authority: a, Logger: zap.NewNop()})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = g.Serve(l)
	}()
	defer func() { g.Stop(); <-ended }()
	token, err := a.NewToken(identity.JoinToken{TTL: time.Hour, Uses: 1})
	if err != nil {
		t.Fatal(err)
	}

	f := &Flags{Model: filepath.Join(t.TempDir(), "missing.gguf"), Gateway: []string{l.Addr().String()},
		CertFlags: CertFlags{Certs: t.TempDir(), JoinToken: config.Secret(token)}}
	f.LogLevel, f.LogFormat = "error", "json"
	given := errors.New("the peers have gone")
	_, err = f.OpenAfter(Streams{io.Discard, io.Discard}, tandemv1.Role_ROLE_TARGET, t.TempDir(),
		func(context.Context, *Opened) error {
			first := f.member.Source().Pair()
			testwait.Until(t, "another certificate", func() bool { return f.member.Source().Pair() != first })
			return given
		})
	f.leave()
	if !errors.Is(err, given) {
		t.Error(err)
	}
}
