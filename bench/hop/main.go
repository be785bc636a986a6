// Command hop measures one hop of the decode loop between two processes: a SpeculateRequest with features there, a
// SpeculateResponse of 22 nodes back, over one bidirectional stream.
//
//	go run ./bench/hop -n 3000
//
// It starts itself as the server. Columns: median, 99th percentile and allocations per round trip of the client's
// process, gRPC's own included.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/shmstream"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

func main() {
	n := flag.Int("n", 3000, "round trips per row")
	serve := flag.String("serve", "", "network:address to serve on (used by the program itself)")
	certs := flag.String("certs", "", "folder of the server's certificate (used by the program itself)")
	plain := flag.Bool("plain", false, "gRPC as it comes: no codec, no options")
	flag.Parse()
	var err error
	if *serve != "" {
		err = server(*serve, *certs, *plain)
	} else {
		err = client(*n, *plain)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hop:", err)
		os.Exit(1)
	}
}

// drafts answers every request with the same tree.
type drafts struct {
	tandemv1.UnimplementedDraftServiceServer
}

// Speculate implements tandemv1.DraftServiceServer.
func (drafts) Speculate(stream grpc.BidiStreamingServer[tandemv1.SpeculateRequest, tandemv1.SpeculateResponse]) error {
	var req tandemv1.SpeculateRequest
	resp := &tandemv1.SpeculateResponse{Tokens: make([]int32, 22), Parents: make([]int32, 22),
		Logprobs: make([]float32, 22)}
	for {
		if err := stream.RecvMsg(&req); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		resp.Epoch, resp.Step, resp.Length = req.Epoch, req.Step, int32(len(req.Features))
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

func server(at, certs string, plain bool) error {
	network, address := at[:4], at[5:]
	if network != "unix" {
		network = "tcp"
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	var options []grpc.ServerOption
	if !plain {
		options = append(tensorwire.ServerOptions(),
			grpc.ChainStreamInterceptor(shmstream.ServerInterceptor(tensorwire.MaxMessageBytes,
				tandemv1.DraftService_Speculate_FullMethodName)))
	}
	if certs != "" {
		pair, err := identity.Load(certs)
		if err != nil {
			return err
		}
		options = append(options, grpc.Creds(identity.Transport{Source: identity.NewSource(pair)}.Server()))
		options = append(options, identity.ServerOptions(zap.NewNop())...)
	}
	s := grpc.NewServer(options...)
	tandemv1.RegisterDraftServiceServer(s, drafts{})
	fmt.Println(l.Addr())
	go func() { // ends with its parent, which holds the other end of stdin
		_, _ = io.Copy(io.Discard, os.Stdin)
		s.Stop()
	}()
	return s.Serve(l)
}

func client(n int, plain bool) error {
	dir, err := os.MkdirTemp("", "hop")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Printf("%-5s %9s %10s %10s %10s\n", "", "bytes", "p50 µs", "p99 µs", "allocs")
	for _, network := range []string{"unix", "tcp4", "mtls", "shm"} {
		if plain && network == "shm" {
			continue
		}
		at := "unix:" + filepath.Join(dir, network)
		creds, certs := insecure.NewCredentials(), ""
		if network == "tcp4" || network == "mtls" {
			at = network + ":127.0.0.1:0"
		}
		if network == "mtls" {
			if creds, certs, err = certificates(dir); err != nil {
				return err
			}
		}
		if err := measure(network, at, certs, creds, n, plain); err != nil {
			return err
		}
	}
	return nil
}

// certificates makes those of a target, the client, and of a draft, the server, whose folder it returns.
func certificates(dir string) (credentials.TransportCredentials, string, error) {
	authority, err := identity.Init(filepath.Join(dir, "authority"), identity.Gateway, time.Hour)
	if err != nil {
		return nil, "", err
	}
	certs := filepath.Join(dir, "draft")
	if _, err := authority.IssuePair(identity.Identity{Role: identity.Draft, ID: "draft"}, certs); err != nil {
		return nil, "", err
	}
	own, err := authority.IssuePair(identity.Identity{Role: identity.Target, ID: "target"}, filepath.Join(dir, "target"))
	if err != nil {
		return nil, "", err
	}
	return identity.Transport{Source: identity.NewSource(own)}.Client(identity.Draft), certs, nil
}

func measure(network, at, certs string, creds credentials.TransportCredentials, n int, plain bool) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-serve", at, "-certs", certs, fmt.Sprintf("-plain=%v", plain))
	cmd.Stderr = os.Stderr
	hold, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { _ = hold.Close(); _ = cmd.Wait() }()
	var address string
	if _, err := fmt.Fscanln(out, &address); err != nil {
		return fmt.Errorf("the server does not say where it is: %w", err)
	}
	target := address
	if network == "unix" || network == "shm" {
		target = "unix:" + address
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(creds)}
	if !plain {
		options = append(options, tensorwire.DialOptions()...)
	}
	if network == "shm" {
		shared := shmstream.ClientInterceptor(tandemv1.DraftService_Speculate_FullMethodName)
		options = append(options, grpc.WithChainStreamInterceptor(shared))
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, size := range []int{64, 92160, 409600} {
		stream, err := tandemv1.NewDraftServiceClient(conn).Speculate(context.Background())
		if err != nil {
			return err
		}
		times, allocs, err := rounds(stream, size, n)
		if err != nil {
			return err
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		slices.Sort(times)
		us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
		fmt.Printf("%-5s %9d %10.1f %10.1f %10.1f\n", network, size, us(times[len(times)/2]),
			us(times[len(times)*99/100]), allocs)
	}
	return nil
}

func rounds(stream grpc.BidiStreamingClient[tandemv1.SpeculateRequest, tandemv1.SpeculateResponse], size,
	n int) ([]time.Duration, float64, error) {
	req := &tandemv1.SpeculateRequest{
		SessionId: "session", Epoch: 1, FeatureRows: 9, FeatureEncoding: tandemv1.FeatureEncoding_FEATURE_ENCODING_FUSED_BF16,
		Propose: &tandemv1.Propose{Anchor: 17, Position: 1000, Budget: 22, Block: 16}, Features: make([]byte, size),
	}
	var resp tandemv1.SpeculateResponse
	times := make([]time.Duration, 0, n)
	var before, after runtime.MemStats
	for i := range n + n/5 {
		if i == n/5 { // warm
			runtime.ReadMemStats(&before)
		}
		req.Step++
		start := time.Now()
		if err := stream.SendMsg(req); err != nil {
			return nil, 0, err
		}
		if err := stream.RecvMsg(&resp); err != nil {
			return nil, 0, err
		}
		if i >= n/5 {
			times = append(times, time.Since(start))
		}
		if resp.Step != req.Step || int(resp.Length) != size {
			return nil, 0, fmt.Errorf("round %d: answer %d of %d bytes", req.Step, resp.Step, resp.Length)
		}
	}
	runtime.ReadMemStats(&after)
	return times, float64(after.Mallocs-before.Mallocs) / float64(n), nil
}
