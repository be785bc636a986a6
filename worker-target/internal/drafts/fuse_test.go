package drafts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// fuser is a draft that hands out a projection as send does.
type fuser struct {
	tandemv1.UnimplementedDraftServiceServer
	send func(stream grpc.ServerStreamingServer[tandemv1.GetFuseResponse]) error
}

func (f *fuser) GetFuse(_ *tandemv1.GetFuseRequest, stream grpc.ServerStreamingServer[tandemv1.GetFuseResponse]) error {
	return f.send(stream)
}

// TestFuseWithinBounds: a projection is taken whole and as announced or not at all, however much a draft sends, and no
// part of one stays.
func TestFuseWithinBounds(t *testing.T) {
	file := make([]byte, 3000)
	sum := sha256.Sum256(file)
	digest := hex.EncodeToString(sum[:])
	const most = 8 << 20
	sent := 0
	piece := func(n int, total int64) *tandemv1.GetFuseResponse {
		sent += n
		return &tandemv1.GetFuseResponse{Digest: digest, TotalBytes: total, Chunk: make([]byte, n)}
	}
	for _, test := range []struct {
		name string
		want codes.Code
		send func(stream grpc.ServerStreamingServer[tandemv1.GetFuseResponse]) error
	}{
		{"whole", codes.OK, func(s grpc.ServerStreamingServer[tandemv1.GetFuseResponse]) error {
			return s.Send(piece(3000, 3000))
		}},
		{"empty first piece", codes.OK, func(s grpc.ServerStreamingServer[tandemv1.GetFuseResponse]) error {
			if err := s.Send(piece(0, 3000)); err != nil {
				return err
			}
			return s.Send(piece(3000, 0))
		}},
		{"nothing", codes.DataLoss, func(grpc.ServerStreamingServer[tandemv1.GetFuseResponse]) error { return nil }},
		{"no size", codes.InvalidArgument,
			func(s grpc.ServerStreamingServer[tandemv1.GetFuseResponse]) error { return s.Send(piece(3000, 0)) }},
		{"too large", codes.InvalidArgument,
			func(s grpc.ServerStreamingServer[tandemv1.GetFuseResponse]) error { return s.Send(piece(3000, most+1)) }},
		{"without end", codes.DataLoss, func(s grpc.ServerStreamingServer[tandemv1.GetFuseResponse]) error {
			for {
				if err := s.Send(piece(1<<20, 2<<20)); err != nil {
					return err
				}
			}
		}},
		{"one huge message", codes.ResourceExhausted,
			func(s grpc.ServerStreamingServer[tandemv1.GetFuseResponse]) error { return s.Send(piece(20<<20, 3000)) }},
		{"other bytes", codes.DataLoss, func(s grpc.ServerStreamingServer[tandemv1.GetFuseResponse]) error {
			m := piece(3000, 3000)
			m.Chunk[7] = 1
			return s.Send(m)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			sent = 0
			listener := bufconn.Listen(1 << 20)
			server := grpc.NewServer(append(tensorwire.ServerOptions(), grpc.WaitForHandlers(true))...)
			tandemv1.RegisterDraftServiceServer(server, &fuser{send: test.send})
			go func() { _ = server.Serve(listener) }()
			conn, err := grpc.NewClient("passthrough:///draft", append(append(tensorwire.DialOptions(), rpcerr.DialOptions()...),
				grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
					return listener.DialContext(ctx)
				}))...)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			m := NewManager(Config{CacheDir: dir}, nil)
			path, err := m.fuse(ctx, tandemv1.NewDraftServiceClient(conn), digest, most)
			conn.Close()
			server.Stop()
			if test.want == codes.OK && err != nil || test.want != codes.OK && err == nil ||
				test.want != codes.OK && rpcerr.Code(err) != test.want {
				t.Errorf("%q, %v, want %v", path, err, test.want)
			}
			if sent > 64<<20 {
				t.Errorf("%d bytes were sent before the transfer ended", sent)
			}
			left, _ := filepath.Glob(filepath.Join(dir, "*"))
			if err == nil {
				if data, rerr := os.ReadFile(path); rerr != nil || len(data) != len(file) || len(left) != 1 {
					t.Errorf("%d bytes, %v, files %v", len(data), rerr, left)
				}
			} else if len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
