package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"github.com/tandem-inference/tandem/gateway/internal/placement"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/tensorwire"
)

const (
	// Round trips of a link: their median is stable from some dozens on, and a slow link has few in mostRoundTime.
	leastRounds, mostRounds = 11, 201
	mostRoundTime           = 2 * time.Second
	// Bytes of a run there and of one back. More take longer on slow links; fewer are over before TCP is at full speed.
	runChunks = 16
	runBytes  = runChunks * tensorwire.ChunkBytes
	// Runs in each direction; a slow link has fewer in linkTime.
	linkRuns, linkTime = 7, 8 * time.Second
)

// Peer is what another host said of itself, and the link to it.
type Peer struct {
	Host *placement.Host
	Link placement.Path
	// Own is the address of this host on the connection; empty where it has none.
	Own string
}

// Reach says why the host at an address cannot be asked, so that a wrong address, or a certificate that is not taken
// there, shows before anything is measured.
func Reach(ctx context.Context, address string, dial func(address string) (*grpc.ClientConn, error)) error {
	conn, err := dial(address)
	if err == nil {
		defer conn.Close()
		err = hinted(knock(ctx, tandemv1.NewProbeServiceClient(conn)))
	}
	if err != nil {
		return fmt.Errorf("peer %s: %w", address, err)
	}
	return nil
}

// knock makes a call that does nothing. A call of the health service would tell less: strangers may make it, too.
func knock(ctx context.Context, client tandemv1.ProbeServiceClient) error {
	stream, err := client.Echo(ctx)
	if err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// hinted adds what the other end cannot say to who speaks without TLS: it ends such a connection.
func hinted(err error) error {
	if err != nil && strings.Contains(err.Error(), "server preface") { // of package grpc
		return fmt.Errorf("%w: it ended the connection, as does one that wants a certificate of its cluster (--certs)", err)
	}
	return err
}

// AskPeer gets the figures of the host at an address, where tandem probe --listen runs, and times the link.
func AskPeer(ctx context.Context, address string, dial func(address string) (*grpc.ClientConn, error)) (_ *Peer,
	err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("peer %s: %w", address, err)
		}
	}()
	conn, err := dial(address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := tandemv1.NewProbeServiceClient(conn)
	var end peer.Peer
	m, err := client.GetHost(ctx, &tandemv1.GetHostRequest{}, grpc.Peer(&end))
	if err != nil {
		return nil, err
	}
	out := &Peer{}
	if out.Host, err = placement.ParseHost([]byte(m.GetHost())); err != nil {
		return nil, err
	}
	if tcp, ok := end.LocalAddr.(*net.TCPAddr); ok {
		out.Own = tcp.IP.String()
	}
	if out.Host.Address == "" {
		out.Host.Address = hostOf(address)
	}
	out.Link, err = timeLink(ctx, client)
	return out, err
}

// hostOf is the host of an address.
func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// timeLink measures the way to a peer and back.
func timeLink(ctx context.Context, client tandemv1.ProbeServiceClient) (p placement.Path, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Echo(ctx)
	if err != nil {
		return p, err
	}
	var rounds []float64
	begin := time.Now()
	for i := range mostRounds {
		took, err := exchange(stream, 1, 0, 0)
		if err != nil {
			return p, err
		}
		if i > 0 { // the first one waits for its turn
			rounds = append(rounds, took.Seconds())
		}
		if len(rounds) >= leastRounds && time.Since(begin) > mostRoundTime {
			break
		}
	}
	trip := median(rounds)
	there, err := rate(stream, trip, tensorwire.ChunkBytes, 0)
	if err != nil {
		return p, err
	}
	back, err := rate(stream, trip, 0, tensorwire.ChunkBytes)
	if err != nil {
		return p, err
	}
	// Stages send rows in one direction and features in the other: the slower one is the one to plan with.
	return placement.Path{RoundTripUS: trip * 1e6, GBs: min(there, back) / 1e9, Origin: placement.Measured}, nil
}

// rate is how many bytes a second go one way, after the round trip that every message takes.
func rate(stream tandemv1.ProbeService_EchoClient, trip float64, payload, answer int) (float64, error) {
	var times []float64
	begin := time.Now()
	for i := range linkRuns + 1 {
		took, err := exchange(stream, runChunks, payload, answer)
		if err != nil {
			return 0, err
		}
		late := time.Since(begin) > linkTime
		if i > 0 || late { // the first run finds the link's speed
			times = append(times, took.Seconds())
		}
		if late {
			break
		}
	}
	took := median(times)
	return runBytes / max(took-trip, took/10), nil // noise must not make a link infinitely fast
}

// exchange sends n messages with so many bytes and waits for their answers.
func exchange(stream tandemv1.ProbeService_EchoClient, n, payload, answer int) (time.Duration, error) {
	begin := time.Now()
	for range n {
		err := stream.Send(&tandemv1.EchoRequest{AnswerBytes: int64(answer), Payload: nothing[:payload]})
		if err != nil && !errors.Is(err, io.EOF) { // EOF: Recv has the reason
			return 0, err
		}
	}
	for range n {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return 0, errors.New("it ended the measurement")
		}
		if err != nil {
			return 0, err
		}
		if len(m.GetPayload()) != answer {
			return 0, fmt.Errorf("it answered with %d bytes instead of %d", len(m.GetPayload()), answer)
		}
	}
	return time.Since(begin), nil
}

// median sorts times. Both directions of a link have delays that are part of it, so the fastest would be too fast.
func median(times []float64) float64 {
	slices.Sort(times)
	return times[len(times)/2]
}
