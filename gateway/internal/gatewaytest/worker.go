package gatewaytest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"net"
	"sync"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/tensorwire"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Decode is the script of a fake target.
type Decode func(req *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) error

// Compress is the script of a fake scorer.
type Compress func(ctx context.Context, req *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error)

// Worker is a scripted worker that joins a gateway through the real client.
type Worker struct {
	tandemv1.UnimplementedTargetServiceServer
	tandemv1.UnimplementedPrefillServiceServer

	// ID under which it registered.
	ID     string
	server *grpc.Server
	client *registry.Membership
	stop   context.CancelFunc
	leave  context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex // guards the following
	decode   Decode
	compress Compress
	contract string
	state    string
	running  int
	requests []*tandemv1.DecodeRequest
	scored   []*tandemv1.CompressRequest
	ahead    []*tandemv1.ReadAheadRequest
	watches  map[chan *tandemv1.WatchRoundsResponse]struct{}
	ended    bool
	mute     bool
	asked    int // whether it is there
}

// WorkerOptions describe a fake worker.
type WorkerOptions struct {
	ID         string
	Role       tandemv1.Role
	Slots      int32
	MaxContext int32
	// KVTokens are what all sequences hold together, 0 = no limit of its own.
	KVTokens int64
	// Contract is the contract id that it registers and states when it admits a request.
	Contract string
	Decode   Decode
	Compress Compress
	Model    *tandemv1.ModelInfo
	// Settings, Attached and Counters are what it tells of itself.
	Settings map[string]string
	// Stages are those that it registers.
	Stages   []*tandemv1.StagePlace
	Attached []string
	Counters map[string]float64
	// Refused are drafts that it cannot use.
	Refused []*tandemv1.RefusedDraft
}

// Join starts a worker on a free port and registers it at the gateway. It ends with the test.
func Join(tb testing.TB, gateway string, opt WorkerOptions) *Worker {
	tb.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	w := &Worker{ID: opt.ID, decode: opt.Decode, compress: opt.Compress, contract: opt.Contract,
		state: registry.StateReady, done: make(chan struct{}),
		watches: map[chan *tandemv1.WatchRoundsResponse]struct{}{}}
	w.server = grpc.NewServer(tensorwire.ServerOptions()...)
	tandemv1.RegisterTargetServiceServer(w.server, w)
	tandemv1.RegisterPrefillServiceServer(w.server, w)
	healthv1.RegisterHealthServer(w.server, &answering{worker: w})
	if opt.Model == nil {
		name := Target
		if opt.Role == tandemv1.Role_ROLE_PREFILL {
			name = Scorer
		}
		opt.Model = &tandemv1.ModelInfo{Name: name, Digest: name, Path: ModelPath(tb, name)}
	}
	w.client, err = registry.NewMembership([]string{gateway}, registry.ClientConfig{
		Registration: &tandemv1.Registration{WorkerId: opt.ID, Role: opt.Role, Address: lis.Addr().String(), Backend: "cpu",
			Device: "fake", Contract: opt.Contract,
			Model: opt.Model, Limits: &tandemv1.Limits{Lanes: opt.Slots, MaxContext: opt.MaxContext, KvTokens: opt.KVTokens},
			Settings: opt.Settings, Stages: opt.Stages}, Heartbeat: func() *tandemv1.Heartbeat {
			w.mu.Lock()
			defer w.mu.Unlock()
			counters := map[string]float64{"verify_steps": 3, "made_up": 4, "prefill_seconds": math.NaN()}
			maps.Copy(counters, opt.Counters)
			return &tandemv1.Heartbeat{State: w.state, LanesBusy: int32(w.running), Counters: counters, Attached: opt.Attached,
				RefusedDrafts: opt.Refused}
		},
		OnLease:     w.obey,
		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())},
	})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	registered, leave := context.WithCancel(ctx)
	w.leave = leave
	go func() {
		defer close(w.done)
		serve := make(chan struct{})
		go func() {
			defer close(serve)
			_ = w.server.Serve(lis)
		}()
		if err := w.client.Run(registered); !errors.Is(err, context.Canceled) {
			tb.Errorf("worker %s: %v", opt.ID, err)
		}
		<-ctx.Done()
		w.server.Stop()
		<-serve
	}()
	tb.Cleanup(w.Kill)
	return w
}

// Kill ends the worker at once: streams break, the lease ends.
func (w *Worker) Kill() {
	w.mu.Lock()
	ended := w.ended
	w.ended = true
	w.mu.Unlock()
	if !ended {
		w.stop()
	}
	<-w.done
}

// obey does what somebody asked of the worker at its gateway, as package workernode does.
func (w *Worker) obey(l *tandemv1.Lease) {
	w.mu.Lock()
	was := w.state
	switch l.GetAdmission() {
	case tandemv1.Admission_ADMISSION_HOLD:
		w.state = registry.StateDraining
	case tandemv1.Admission_ADMISSION_OPEN:
		w.state = registry.StateReady
	case tandemv1.Admission_ADMISSION_END:
		w.leave()
	}
	changed := w.state != was
	w.mu.Unlock()
	if changed {
		w.client.Notify()
	}
}

// Mute makes the worker not answer whether it is there, or answer again.
func (w *Worker) Mute(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mute = yes
}

// Asked is how often the worker was asked whether it is there.
func (w *Worker) Asked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked
}

// answering says that the worker is there, unless it is mute.
type answering struct {
	healthv1.UnimplementedHealthServer
	worker *Worker
}

// Check implements the service.
func (a *answering) Check(ctx context.Context, _ *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	a.worker.mu.Lock()
	mute := a.worker.mute
	a.worker.asked++
	a.worker.mu.Unlock()
	if mute {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &healthv1.HealthCheckResponse{Status: healthv1.HealthCheckResponse_SERVING}, nil
}

// Leave ends the worker's lease; it serves on.
func (w *Worker) Leave() { w.leave() }

// stating puts the worker's contract id into the message that admits a request.
type stating struct {
	tandemv1.TargetService_DecodeServer
	contract string
}

// Send implements the stream.
func (s *stating) Send(m *tandemv1.DecodeResponse) error {
	if a := m.GetAdmitted(); a != nil {
		a.Contract = cmp.Or(a.Contract, s.contract)
	}
	return s.TargetService_DecodeServer.Send(m)
}

// SetContract changes the id that the worker states when it admits a request, not the registered one: what a worker
// does that was started again at the same address with other settings.
func (w *Worker) SetContract(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.contract = id
}

// SetDecode replaces the script.
func (w *Worker) SetDecode(d Decode) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.decode = d
}

// SetCompress replaces the script.
func (w *Worker) SetCompress(c Compress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.compress = c
}

// Requests returns the decode requests so far.
func (w *Worker) Requests() []*tandemv1.DecodeRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*tandemv1.DecodeRequest(nil), w.requests...)
}

// Scored returns the compress requests so far.
func (w *Worker) Scored() []*tandemv1.CompressRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*tandemv1.CompressRequest(nil), w.scored...)
}

// Ahead returns the prompts so far that are to be read ahead.
func (w *Worker) Ahead() []*tandemv1.ReadAheadRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*tandemv1.ReadAheadRequest(nil), w.ahead...)
}

// ReadAhead implements the target service.
func (w *Worker) ReadAhead(_ context.Context, m *tandemv1.ReadAheadRequest) (*tandemv1.ReadAheadResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ahead = append(w.ahead, m)
	return &tandemv1.ReadAheadResponse{Accepted: true}, nil
}

// WatchRounds implements the target service: it sends what Tell is given.
func (w *Worker) WatchRounds(_ *tandemv1.WatchRoundsRequest, stream tandemv1.TargetService_WatchRoundsServer) error {
	events := make(chan *tandemv1.WatchRoundsResponse, 1024)
	w.mu.Lock()
	w.watches[events] = struct{}{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.watches, events)
	}()
	for {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case m := <-events:
			if err := stream.Send(m); err != nil {
				return err
			}
		}
	}
}

// Watched is the number of those who watch its rounds.
func (w *Worker) Watched() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.watches)
}

// Tell describes a round to all who watch.
func (w *Worker) Tell(e *tandemv1.WatchEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for events := range w.watches {
		events <- &tandemv1.WatchRoundsResponse{Event: e}
	}
}

// Decode implements the target service.
func (w *Worker) Decode(req *tandemv1.DecodeRequest, stream tandemv1.TargetService_DecodeServer) error {
	w.mu.Lock()
	w.running++
	w.requests = append(w.requests, req)
	script := w.decode
	stream = &stating{stream, w.contract}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.running--
		w.mu.Unlock()
	}()
	return script(req, stream)
}

// Compress implements the prefill service.
func (w *Worker) Compress(ctx context.Context, req *tandemv1.CompressRequest) (*tandemv1.CompressResponse, error) {
	w.mu.Lock()
	w.scored = append(w.scored, req)
	script := w.compress
	w.mu.Unlock()
	return script(ctx, req)
}
