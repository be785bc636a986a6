package registry

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/racetest"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hub is a registry server on an in-memory listener; the listener can be replaced to play an outage.
type hub struct {
	srv *Server
	mu  sync.Mutex
	lis *bufconn.Listener
	gs  *grpc.Server
}

func newHub(cfg ServerConfig) *hub {
	h := &hub{srv: NewServer(cfg)}
	h.start()
	return h
}

func (h *hub) start() {
	lis, gs := bufconn.Listen(1<<16), grpc.NewServer()
	tandemv1.RegisterRegistryServiceServer(gs, h.srv)
	go gs.Serve(lis)
	h.mu.Lock()
	h.lis, h.gs = lis, gs
	h.mu.Unlock()
}

func (h *hub) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gs.Stop()
}

func (h *hub) dial(ctx context.Context, _ string) (net.Conn, error) {
	h.mu.Lock()
	lis := h.lis
	h.mu.Unlock()
	return lis.DialContext(ctx)
}

func (h *hub) options() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(h.dial)}
}

// worker is a client with its recorded leases.
type worker struct {
	*Client
	mu     sync.Mutex
	leases []*tandemv1.Lease
	state  string
	stop   func()
}

func (w *worker) peers() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	ids := []string{}
	if len(w.leases) > 0 {
		for _, p := range w.leases[len(w.leases)-1].GetPeers() {
			ids = append(ids, p.GetWorkerId())
		}
	}
	return ids
}

func (w *worker) epoch() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.leases) == 0 {
		return 0
	}
	return w.leases[len(w.leases)-1].GetEpoch()
}

func (w *worker) setState(s string) {
	w.mu.Lock()
	w.state = s
	w.mu.Unlock()
	w.Notify()
}

func registration(id string, role tandemv1.Role, model *tandemv1.ModelInfo) *tandemv1.Registration {
	return &tandemv1.Registration{WorkerId: id, Role: role, Address: id + ":1", Model: model}
}

func join(t *testing.T, h *hub, reg *tandemv1.Registration) *worker {
	t.Helper()
	w := &worker{state: StateReady}
	c, err := NewClient(ClientConfig{
		Gateway: "passthrough:///hub", Registration: reg, DialOptions: h.options(),
		Heartbeat: func() *tandemv1.Heartbeat {
			w.mu.Lock()
			defer w.mu.Unlock()
			return &tandemv1.Heartbeat{State: w.state, LanesBusy: 1}
		},
		OnLease: func(l *tandemv1.Lease) {
			w.mu.Lock()
			w.leases = append(w.leases, l)
			w.mu.Unlock()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.Client = c
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v, want canceled", err)
		}
	}
	return w
}

var (
	targetModel = &tandemv1.ModelInfo{Name: "t", TokenizerDigest: "aa", Hidden: 512, Vocab: 100, NLayers: 8, Digest: "m"}
	draftModel  = &tandemv1.ModelInfo{Name: "d", TokenizerDigest: "aa", Hidden: 512, Vocab: 100,
		CaptureLayers: []int32{1, 3, 6}, Digest: "n"}
)

func target(id string) *tandemv1.Registration {
	return registration(id, tandemv1.Role_ROLE_TARGET, targetModel)
}

func draft(id string) *tandemv1.Registration {
	return registration(id, tandemv1.Role_ROLE_DRAFT, draftModel)
}

func states(s *Server) map[string]string {
	m := map[string]string{}
	for _, w := range s.Workers() {
		m[w.ID] = w.State
	}
	return m
}

func TestLeaseLifeCycle(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		h := newHub(ServerConfig{LeaseTTL: 3 * time.Second})
		defer h.stop()
		a := join(t, h, target("t1"))
		time.Sleep(time.Second)
		synctest.Wait()
		if d := cmp.Diff(map[string]string{"t1": StateReady}, states(h.srv)); d != "" {
			t.Fatal(d)
		}
		if !a.Joined() {
			t.Error("client does not know that it joined")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if w := h.srv.Workers()[0]; time.Since(w.LastHeartbeat) > time.Second+time.Millisecond ||
			w.Heartbeat.GetLanesBusy() != 1 {
			t.Errorf("heartbeats stopped: %v old", time.Since(w.LastHeartbeat))
		}
		a.setState(StateDraining)
		synctest.Wait()
		if got := states(h.srv)["t1"]; got != StateDraining {
			t.Errorf("state %q right after Notify, want draining", got)
		}
		a.stop()
		synctest.Wait()
		if got := states(h.srv)["t1"]; got != StateLost {
			t.Errorf("state %q after the stream ended, want lost", got)
		}
		time.Sleep(DefaultKeepLost + time.Second)
		if len(h.srv.Workers()) != 0 {
			t.Error("lost worker was never forgotten")
		}
	})
}

// TestUpdate: a worker that joined while it loaded tells what it is later; drafts follow, the lease goes on.
func TestUpdate(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		h := newHub(ServerConfig{})
		defer h.stop()
		d := join(t, h, draft("d1"))
		defer d.stop()
		a := join(t, h, registration("t1", tandemv1.Role_ROLE_TARGET, &tandemv1.ModelInfo{Digest: "m"}))
		defer a.stop()
		synctest.Wait()
		epoch := a.epoch()
		if got := a.peers(); !slices.Contains(got, "d1") {
			t.Errorf("drafts %v for a target that may fit", got)
		}
		a.Update(target("t1"))
		a.Update(registration("t1", tandemv1.Role_ROLE_TARGET, &tandemv1.ModelInfo{Digest: "m", Hidden: 1024}))
		synctest.Wait()
		if got := a.peers(); len(got) != 0 {
			t.Errorf("drafts %v for a target that they do not fit", got)
		}
		a.Update(registration("another", tandemv1.Role_ROLE_DRAFT, targetModel))
		synctest.Wait()
		if got := a.peers(); !slices.Contains(got, "d1") {
			t.Errorf("drafts %v after the update", got)
		}
		for _, w := range h.srv.Workers() {
			if w.ID == "t1" && (w.Registration.GetModel().GetHidden() != 512 ||
				w.Registration.GetRole() != tandemv1.Role_ROLE_TARGET) {
				t.Errorf("registration %v", w.Registration)
			}
		}
		if a.epoch() != epoch || len(h.srv.Workers()) != 2 {
			t.Error("the update made a new lease")
		}
		// It stays updated for later joins.
		h.stop()
		synctest.Wait()
		h.start()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := a.peers(); !slices.Contains(got, "d1") {
			t.Errorf("drafts %v after an outage", got)
		}
	})
}

func TestSilentWorkerExpires(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		h := newHub(ServerConfig{LeaseTTL: 3 * time.Second})
		defer h.stop()
		conn, err := grpc.NewClient("passthrough:///hub", h.options()...)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := tandemv1.NewRegistryServiceClient(conn).Join(ctx)
		if err != nil {
			t.Fatal(err)
		}
		reg := target("mute")
		reg.ProtocolVersion = ProtocolVersion
		stream.Send(&tandemv1.JoinRequest{Message: &tandemv1.JoinRequest_Registration{Registration: reg}})
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = stream.Recv()
		if status.Code(err) != codes.DeadlineExceeded || time.Since(start) != 3*time.Second {
			t.Errorf("stream ended with %v after %v, want DEADLINE_EXCEEDED after 3s", err, time.Since(start))
		}
		synctest.Wait()
		if got := states(h.srv)["mute"]; got != StateLost {
			t.Errorf("state %q, want lost", got)
		}
	})
}

func TestReconnectRaisesEpoch(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		h := newHub(ServerConfig{})
		a := join(t, h, target("t1"))
		defer a.stop()
		time.Sleep(time.Second)
		if a.epoch() != 1 {
			t.Fatalf("epoch %d, want 1", a.epoch())
		}
		h.stop()
		time.Sleep(10 * time.Second)
		if a.Joined() {
			t.Error("joined without a gateway")
		}
		h.start()
		defer h.stop()
		time.Sleep(20 * time.Second)
		if a.epoch() != 2 || !a.Joined() {
			t.Errorf("epoch %d joined %v after the outage, want 2 true", a.epoch(), a.Joined())
		}
	})
}

func TestSecondStreamReplacesFirst(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		h := newHub(ServerConfig{})
		defer h.stop()
		d := join(t, h, draft("d"))
		tg := join(t, h, target("t"))
		defer tg.stop()
		time.Sleep(time.Second)
		reg := draft("d")
		reg.Address = "elsewhere:2"
		d.stop()
		d2 := join(t, h, reg)
		defer d2.stop()
		time.Sleep(time.Second)
		if d2.epoch() != 2 {
			t.Errorf("epoch %d, want 2", d2.epoch())
		}
		tg.mu.Lock()
		defer tg.mu.Unlock()
		last := tg.leases[len(tg.leases)-1]
		if len(last.GetPeers()) != 1 || last.GetPeers()[0].GetAddress() != "elsewhere:2" {
			t.Errorf("target was told peers %v, want the new address", last.GetPeers())
		}
	})
}

func TestPeerAssignment(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		h := newHub(ServerConfig{})
		defer h.stop()
		ws := map[string]*worker{}
		add := func(reg *tandemv1.Registration) {
			ws[reg.WorkerId] = join(t, h, reg)
			time.Sleep(time.Second)
		}
		check := func(when string, want map[string][]string) {
			t.Helper()
			time.Sleep(time.Second)
			for id, peers := range want {
				if got := ws[id].peers(); !slices.Equal(got, peers) {
					t.Errorf("%s: %s has %v, want %v", when, id, got, peers)
				}
			}
		}
		add(target("t1"))
		add(draft("d1"))
		check("one draft", map[string][]string{"t1": {"d1"}, "d1": {}})
		add(target("t2"))
		check("shared draft", map[string][]string{"t1": {"d1"}, "t2": {"d1"}})
		odd := draft("d0")
		odd.Model = &tandemv1.ModelInfo{TokenizerDigest: "bb", Hidden: 512}
		add(odd)
		check("foreign vocabulary is paired with nobody", map[string][]string{"t1": {"d1"}, "t2": {"d1"}})
		add(draft("d2"))
		check("second draft goes to the first of the least", map[string][]string{"t1": {"d1", "d2"}, "t2": {"d1"}})
		ws["d1"].stop()
		delete(ws, "d1")
		check("t2 shares what is left", map[string][]string{"t1": {"d2"}, "t2": {"d2"}})
		ws["d2"].setState(StateDraining)
		check("draining draft is taken away", map[string][]string{"t1": {}, "t2": {}})
		for _, w := range ws {
			w.stop()
		}
	})
}

func TestCompatible(t *testing.T) {
	change := func(f func(*tandemv1.ModelInfo)) *tandemv1.ModelInfo {
		m := &tandemv1.ModelInfo{TokenizerDigest: "aa", Hidden: 512, Vocab: 100, CaptureLayers: []int32{1, 7}}
		f(m)
		return m
	}
	tests := []struct {
		name  string
		draft *tandemv1.ModelInfo
		want  bool
	}{
		{"equal", change(func(*tandemv1.ModelInfo) {}), true},
		{"unknown vocabulary", change(func(m *tandemv1.ModelInfo) { m.TokenizerDigest, m.Vocab = "", 0 }), true},
		{"other tokenizer", change(func(m *tandemv1.ModelInfo) { m.TokenizerDigest = "bb" }), false},
		{"other hidden size", change(func(m *tandemv1.ModelInfo) { m.Hidden = 256 }), false},
		{"other vocabulary size", change(func(m *tandemv1.ModelInfo) { m.Vocab = 99 }), false},
		{"layer beyond the target", change(func(m *tandemv1.ModelInfo) { m.CaptureLayers = []int32{8} }), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Compatible(targetModel, tt.draft); got != tt.want {
				t.Errorf("Compatible = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		name   string
		reg    *tandemv1.Registration
		code   codes.Code
		reason string
		field  string
	}{
		{"no registration", nil, codes.InvalidArgument, "", "registration"},
		{"no id", &tandemv1.Registration{ProtocolVersion: 1, Role: 1, Address: "127.0.0.1:1"},
			codes.InvalidArgument, "", "worker_id"},
		{"no role", &tandemv1.Registration{ProtocolVersion: 1, WorkerId: "w", Address: "127.0.0.1:1"},
			codes.InvalidArgument, "", "role"},
		{"no address", &tandemv1.Registration{ProtocolVersion: 1, WorkerId: "w", Role: 1},
			codes.InvalidArgument, "", "address"},
		{"other protocol", &tandemv1.Registration{ProtocolVersion: 9, WorkerId: "w", Role: 1, Address: "127.0.0.1:1"},
			codes.FailedPrecondition, "PROTOCOL_MISMATCH", ""},
		{"refused by the cluster",
			&tandemv1.Registration{ProtocolVersion: 1, WorkerId: "bad", Role: 1, Address: "127.0.0.1:1"},
			codes.FailedPrecondition, "MODEL_MISMATCH", ""},
	}
	h := newHub(ServerConfig{Accept: func(r *tandemv1.Registration) error {
		if r.WorkerId == "bad" {
			return reasonError(codes.FailedPrecondition, "MODEL_MISMATCH", "another model is served")
		}
		return nil
	}})
	defer h.stop()
	conn, err := grpc.NewClient("passthrough:///hub", h.options()...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			stream, err := tandemv1.NewRegistryServiceClient(conn).Join(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			req := &tandemv1.JoinRequest{}
			if tt.reg != nil {
				req.Message = &tandemv1.JoinRequest_Registration{Registration: tt.reg}
			}
			stream.Send(req)
			_, err = stream.Recv()
			st := status.Convert(err)
			if st.Code() != tt.code {
				t.Fatalf("error %v, want code %v", err, tt.code)
			}
			var reason, field string
			for _, d := range st.Details() {
				switch d := d.(type) {
				case *errdetails.ErrorInfo:
					reason = d.Reason
				case *errdetails.BadRequest:
					field = d.FieldViolations[0].Field
				}
			}
			if reason != tt.reason || field != tt.field {
				t.Errorf("reason %q field %q, want %q %q", reason, field, tt.reason, tt.field)
			}
		})
	}
}

func TestWatchMergesChanges(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		h := newHub(ServerConfig{})
		defer h.stop()
		ch, end := h.srv.Watch()
		<-ch
		a, b := join(t, h, target("t1")), join(t, h, draft("d1"))
		time.Sleep(time.Second)
		<-ch
		if got := len(h.srv.Workers()); got != 2 {
			t.Errorf("%d workers, want 2", got)
		}
		end()
		a.stop()
		b.stop()
	})
}

func TestClientConfigErrors(t *testing.T) {
	hb := func() *tandemv1.Heartbeat { return nil }
	for name, cfg := range map[string]ClientConfig{
		"no gateway":      {Registration: target("t"), Heartbeat: hb},
		"no registration": {Gateway: "g", Heartbeat: hb},
		"no heartbeat":    {Gateway: "g", Registration: target("t")},
	} {
		if _, err := NewClient(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestLeavingIsLogged: a worker that goes without having said so is a warning with the reason, one that drained is not.
func TestLeavingIsLogged(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		h := newHub(ServerConfig{LeaseTTL: 3 * time.Second, Logger: zap.New(core)})
		defer h.stop()
		left := func(level zapcore.Level, reason string, drained bool) {
			t.Helper()
			synctest.Wait()
			all := logs.FilterMessage("worker left").All()
			logs.TakeAll()
			if len(all) != 1 || all[0].Level != level || all[0].ContextMap()["reason"] != reason ||
				h.srv.Workers()[0].Drained != drained {
				t.Errorf("logged %v, want %v %q", all, level, reason)
			}
		}
		a := join(t, h, target("t1"))
		synctest.Wait()
		a.stop()
		left(zap.WarnLevel, "it closed its stream without draining", false)
		a = join(t, h, target("t1"))
		synctest.Wait()
		a.setState(StateDraining)
		synctest.Wait()
		a.stop()
		left(zap.InfoLevel, "it was told to end", true)
		conn, err := grpc.NewClient("passthrough:///hub", h.options()...)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := tandemv1.NewRegistryServiceClient(conn).Join(ctx)
		if err != nil {
			t.Fatal(err)
		}
		reg := target("t1")
		reg.ProtocolVersion = ProtocolVersion
		stream.Send(&tandemv1.JoinRequest{Message: &tandemv1.JoinRequest_Registration{Registration: reg}})
		synctest.Wait()
		cancel()
		left(zap.WarnLevel, "its connection was lost: the process ended, or the network", false)
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		if stream, err = tandemv1.NewRegistryServiceClient(conn).Join(ctx); err != nil {
			t.Fatal(err)
		}
		stream.Send(&tandemv1.JoinRequest{Message: &tandemv1.JoinRequest_Registration{Registration: reg}})
		time.Sleep(4 * time.Second)
		left(zap.WarnLevel, "no heartbeat within the lease", false)
	})
}

// TestQuietEnd: a worker whose gateway ends just before it, as in every shutdown, warns of nothing and says goodbye to
// one that is there; a gateway that stays away is one warning.
func TestQuietEnd(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		server, left := observer.New(zap.InfoLevel)
		h := newHub(ServerConfig{LeaseTTL: 3 * time.Second, Logger: zap.New(server)})
		core, logs := observer.New(zap.WarnLevel)
		begin := func() (end func()) {
			state := StateReady
			c, err := NewClient(ClientConfig{
				Gateway: "passthrough:///hub", Registration: target("t1"), DialOptions: h.options(), Logger: zap.New(core),
				Heartbeat: func() *tandemv1.Heartbeat { return &tandemv1.Heartbeat{State: state} },
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = c.Run(ctx)
			}()
			time.Sleep(time.Second)
			return func() {
				synctest.Wait()
				state = StateDraining // which no heartbeat has told yet
				cancel()
				<-done
				synctest.Wait()
			}
		}
		begin()()
		if all := left.FilterMessage("worker left").All(); len(all) != 1 ||
			all[0].ContextMap()["reason"] != "it was told to end" {
			t.Errorf("the gateway saw %v", all)
		}
		end := begin()
		h.stop()
		time.Sleep(time.Second)
		end()
		if logs.Len() != 0 {
			t.Errorf("a clean end logged %v", logs.All())
		}
		end = begin()
		time.Sleep(time.Minute)
		end()
		if logs.Len() != 1 {
			t.Errorf("a gateway that stays away logged %d times: %v", logs.Len(), logs.All())
		}
	})
}

// hasty answers a registration with a lease; after the second heartbeat it sends one more and ends the stream.
type hasty struct {
	tandemv1.UnimplementedRegistryServiceServer
	joins atomic.Int32
	last  <-chan struct{}
}

func (s *hasty) Join(stream tandemv1.RegistryService_JoinServer) error {
	s.joins.Add(1)
	lease := &tandemv1.JoinResponse{Lease: &tandemv1.Lease{Epoch: 1, LeaseTtlMs: 3000}}
	if err := stream.Send(lease); err != nil {
		return err
	}
	select {
	case <-s.last:
	case <-stream.Context().Done():
	}
	return stream.Send(lease)
}

// TestLeaseJustBeforeTheEnd: a lease that arrives while the worker prepares a heartbeat, on a stream that ends
// meanwhile, neither keeps the worker from joining again nor from ending.
func TestLeaseJustBeforeTheEnd(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		last := make(chan struct{})
		s := &hasty{last: last}
		lis, gs := bufconn.Listen(1<<16), grpc.NewServer()
		tandemv1.RegisterRegistryServiceServer(gs, s)
		go gs.Serve(lis)
		defer gs.Stop()
		heartbeats := 0
		c, err := NewClient(ClientConfig{
			Gateway: "passthrough:///hasty", Registration: target("t1"),
			DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) })},
			Heartbeat: func() *tandemv1.Heartbeat {
				if heartbeats++; heartbeats == 2 {
					close(last)
					synctest.Wait() // until lease and end have arrived
				}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = c.Run(ctx)
		}()
		time.Sleep(time.Minute)
		if n := s.joins.Load(); n < 2 {
			t.Errorf("%d joins in a minute, want another one after the first stream", n)
		}
		cancel()
		<-done
	})
}
