package registry

import (
	"context"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// raw opens a stream of its own to a hub and says first.
func raw(t *testing.T, ctx context.Context, h *hub,
	first *tandemv1.JoinRequest) (tandemv1.RegistryService_JoinClient, error) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///hub", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, a string) (net.Conn, error) { return h.dial(ctx, a) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	stream, err := tandemv1.NewRegistryServiceClient(conn).Join(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(first); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	return stream, err
}

func registering(id string) *tandemv1.Registration {
	return &tandemv1.Registration{WorkerId: id, Role: tandemv1.Role_ROLE_TARGET,
		ProtocolVersion: ProtocolVersion, Address: "127.0.0.1:1"}
}

func joining(r *tandemv1.Registration) *tandemv1.JoinRequest {
	return &tandemv1.JoinRequest{Message: &tandemv1.JoinRequest_Registration{Registration: r}}
}

// TestRefusesStrangeRegistrations: what no worker says of itself is refused by name, and so is a heartbeat that no
// worker sends.
func TestRefusesStrangeRegistrations(t *testing.T) {
	h := newHub(ServerConfig{})
	defer h.stop()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, test := range []struct {
		field string
		spoil func(r *tandemv1.Registration)
	}{
		{"worker_id", func(r *tandemv1.Registration) { r.WorkerId = strings.Repeat("x", 129) }},
		{"worker_id", func(r *tandemv1.Registration) { r.WorkerId = "a\nb" }},
		{"role", func(r *tandemv1.Registration) { r.Role = 77 }},
		{"address", func(r *tandemv1.Registration) { r.Address = strings.Repeat("x", 513) }},
		{"address", func(r *tandemv1.Registration) { r.Address = "elsewhere" }},
		{"address", func(r *tandemv1.Registration) { r.Address = "dns:///elsewhere:80" }},
		{"address", func(r *tandemv1.Registration) { r.Address = "10.0.0.1:70000" }},
		{"address", func(r *tandemv1.Registration) { r.Address = "unix://socket" }},
		{"remote_address", func(r *tandemv1.Registration) { r.RemoteAddress = "10.0.0.1:1" }}, // beside one of the network
		{"remote_address", func(r *tandemv1.Registration) { r.Address, r.RemoteAddress = "unix:///s", "unix:///t" }},
		{"remote_address", func(r *tandemv1.Registration) { r.Address, r.RemoteAddress = "unix:///s", "elsewhere" }},
		{"model.name", func(r *tandemv1.Registration) { r.Model = &tandemv1.ModelInfo{Name: strings.Repeat("x", 20_000)} }},
		{"limits.max_context", func(r *tandemv1.Registration) { r.Limits = &tandemv1.Limits{MaxContext: -1} }},
		{"limits.lanes", func(r *tandemv1.Registration) { r.Limits = &tandemv1.Limits{Lanes: -1} }},
		{"settings", func(r *tandemv1.Registration) {
			r.Settings = map[string]string{}
			for i := range 65 {
				r.Settings[fmt.Sprint(i)] = ""
			}
		}},
	} {
		r := registering("w")
		test.spoil(r)
		if _, err := raw(t, ctx, h, joining(r)); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), test.field) {
			t.Errorf("%s: %v", test.field, err)
		}
	}
	stream, err := raw(t, ctx, h, joining(registering("w")))
	if err != nil {
		t.Fatal(err)
	}
	beat := &tandemv1.Heartbeat{State: StateReady, RttMs: math.NaN()}
	if err := stream.Send(&tandemv1.JoinRequest{Message: &tandemv1.JoinRequest_Heartbeat{Heartbeat: beat}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "rtt_ms") {
		t.Errorf("a heartbeat with NaN: %v", err)
	}
}

// TestLimitsOfOneAddress: one address has so many streams at a time and joins so often, others are not concerned.
func TestLimitsOfOneAddress(t *testing.T) {
	l := newLimits()
	now := time.Now()
	for i := range mostStreams {
		if err := l.admit("a", now); err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
	}
	if err := l.admit("a", now); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one stream too many: %v", err)
	}
	if err := l.admit("b", now); err != nil {
		t.Errorf("another address: %v", err)
	}
	joins := mostStreams
	for range mostStreams {
		l.release("a")
	}
	for ; l.admit("a", now) == nil; joins++ {
		l.release("a")
	}
	if joins != burst {
		t.Errorf("%d joins at once, want %d", joins, burst)
	}
	if err := l.admit("a", now.Add(time.Second)); err != nil {
		t.Errorf("a second later: %v", err)
	}
	for i := range 3 * mostHosts {
		if err := l.admit(fmt.Sprint("host", i), now); err != nil {
			t.Fatal(err)
		}
		l.release(fmt.Sprint("host", i))
	}
	if len(l.hosts) > mostHosts {
		t.Errorf("%d addresses are remembered", len(l.hosts))
	}
}

// TestTableIsBounded: ten thousand workers that come and go leave a table of bounded size and no trace of their epochs;
// who comes back has a higher epoch, and while the table is full of living ones a new one is refused.
func TestTableIsBounded(t *testing.T) {
	s := NewServer(ServerConfig{})
	first, err := s.add(registering("w0"))
	if err != nil {
		t.Fatal(err)
	}
	s.remove(first, nil)
	for i := range 10_000 {
		e, err := s.add(registering(fmt.Sprint("w", i+1)))
		if err != nil {
			t.Fatal(err)
		}
		s.remove(e, nil)
	}
	if len(s.workers) > mostWorkers || len(s.epochs) > mostWorkers {
		t.Errorf("%d workers and %d epochs in the table", len(s.workers), len(s.epochs))
	}
	again, err := s.add(registering("w0"))
	if err != nil || again.w.Epoch <= first.w.Epoch {
		t.Errorf("back with epoch %d after %d, %v", again.w.Epoch, first.w.Epoch, err)
	}
	for i := range mostWorkers - 1 {
		if _, err := s.add(registering(fmt.Sprint("live", i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.add(registering("one more")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one worker too many: %v", err)
	}
	if _, err := s.add(registering("live0")); err != nil {
		t.Errorf("one that registers again: %v", err)
	}
}
