package tensorwire

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers with the number of feature bytes and their sum.
type echo struct {
	tandemv1.UnimplementedDraftServiceServer
}

func (echo) Speculate(stream grpc.BidiStreamingServer[tandemv1.SpeculateRequest, tandemv1.SpeculateResponse]) error {
	var req tandemv1.SpeculateRequest
	var resp tandemv1.SpeculateResponse
	for {
		if err := stream.RecvMsg(&req); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		resp.Epoch, resp.Step, resp.Length, resp.AppendUs = req.Epoch, req.Step, int32(len(req.Features)), 0
		for _, b := range req.Features {
			resp.AppendUs += int32(b)
		}
		if err := stream.Send(&resp); err != nil {
			return err
		}
	}
}

func dialEcho(t testing.TB, server []grpc.ServerOption,
	client []grpc.DialOption) grpc.BidiStreamingClient[tandemv1.SpeculateRequest, tandemv1.SpeculateResponse] {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(server...)
	tandemv1.RegisterDraftServiceServer(s, echo{})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	conn, err := grpc.NewClient("unix:"+l.Addr().String(),
		append(client, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); s.Stop(); <-done })
	// Without messages kept for a retry of the stream, Released comes before the first answer.
	stream, err := tandemv1.NewDraftServiceClient(conn).Speculate(t.Context(), grpc.MaxRetryRPCBufferSize(1))
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// TestInteroperates: each side may use the codec without the other.
func TestInteroperates(t *testing.T) {
	for name, c := range map[string]struct {
		server []grpc.ServerOption
		client []grpc.DialOption
	}{
		"both":   {ServerOptions(), DialOptions()},
		"server": {ServerOptions(), nil},
		"client": {nil, DialOptions()},
	} {
		t.Run(name, func(t *testing.T) {
			stream := dialEcho(t, c.server, c.client)
			released := make(chan struct{}, 1)
			req := &tandemv1.SpeculateRequest{Epoch: 5, Features: make([]byte, 70000)}
			lent := &Lent{Message: req, Released: func() { released <- struct{}{} }}
			var resp tandemv1.SpeculateResponse
			for step := range 50 {
				sum := 0
				for i := range req.Features {
					req.Features[i] = byte(i * step)
					sum += int(byte(i * step))
				}
				req.Step = uint64(step)
				var m any = req
				if c.client != nil {
					m = lent
				}
				if err := stream.SendMsg(m); err != nil {
					t.Fatal(err)
				}
				if c.client != nil {
					<-released // from here on the bytes are ours again
					clear(req.Features)
				}
				if err := stream.RecvMsg(&resp); err != nil {
					t.Fatal(err)
				}
				if resp.Step != uint64(step) || int(resp.Length) != len(req.Features) || int(resp.AppendUs) != sum {
					t.Fatalf("step %d: %v, want a sum of %d", step, &resp, sum)
				}
			}
			if err := stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if err := stream.RecvMsg(&resp); err != io.EOF {
				t.Fatal(err)
			}
		})
	}
}

// BenchmarkHop counts allocations of both sides, gRPC's included.
func BenchmarkHop(b *testing.B) {
	for _, size := range []int{64, 92160, 409600} {
		for name, options := range map[string]struct {
			server []grpc.ServerOption
			client []grpc.DialOption
		}{
			"tensorwire": {ServerOptions(), DialOptions()},
			"plain":      {},
		} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				stream := dialEcho(b, options.server, options.client)
				req := &tandemv1.SpeculateRequest{SessionId: "s", Propose: &tandemv1.Propose{Block: 16},
					Features: make([]byte, size)}
				var resp tandemv1.SpeculateResponse
				b.SetBytes(int64(size))
				b.ReportAllocs()
				for b.Loop() {
					if err := stream.SendMsg(req); err != nil {
						b.Fatal(err)
					}
					if err := stream.RecvMsg(&resp); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
