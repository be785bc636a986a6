package registry

import (
	"context"
	"errors"
	"io"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/bounds"
	"github.com/tandem-inference/tandem/services/identity"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/unixsocket"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Defaults of ServerConfig.
const (
	DefaultLeaseTTL = 6 * time.Second
	DefaultKeepLost = time.Minute
)

// MaxMessageBytes bounds a message of the registry: a registration within its bounds takes some 30 KB.
const MaxMessageBytes = 64 << 10

// ServerConfig sets up a Server; zero members take the defaults.
type ServerConfig struct {
	// LeaseTTL is how long a worker may stay silent. Workers send a heartbeat every third of it.
	LeaseTTL time.Duration
	// KeepLost is how long a lost worker stays in the list.
	KeepLost time.Duration
	// Accept may refuse a registration with a gRPC status (FAILED_PRECONDITION: does not fit the cluster). Nil
	// accepts all.
	Accept func(*tandemv1.Registration) error
	Logger *zap.Logger
}

// Worker is the state of one worker at the time of the call that returned it. Registration and Heartbeat are shared and
// must not be changed; Heartbeat is nil before the first one.
type Worker struct {
	ID            string
	Epoch         uint64
	State         string
	Registration  *tandemv1.Registration
	Heartbeat     *tandemv1.Heartbeat
	Joined        time.Time
	LastHeartbeat time.Time
	// Drafts assigned to this target.
	Drafts []string
	// Drained says of a lost worker that it had said it would go.
	Drained bool
	// Idle says of a draining worker that it has no work left, as far as it knows.
	Idle bool
}

// Server is the gateway's side of the lease. It is safe for concurrent use.
type Server struct {
	tandemv1.UnimplementedRegistryServiceServer
	cfg ServerConfig
	log *zap.Logger

	mu       sync.Mutex // guards everything below
	workers  map[string]*entry
	epochs   map[string]uint64 // of workers in the table
	oldest   uint64            // the highest epoch of those that were forgotten: who comes back gets a higher one
	limits   limits
	watchers map[chan struct{}]struct{}
	ending   bool
	others   others
}

// entry is one worker in the table; guarded by Server.mu.
type entry struct {
	w Worker
	// poke tells the stream that its lease changed or that another stream replaced it; capacity 1.
	poke     chan struct{}
	replaced bool
	drafts   []string
	lostAt   time.Time
	// admission is what was asked of the worker here.
	admission admission
}

// NewServer returns a server without workers.
func NewServer(cfg ServerConfig) *Server {
	if cfg.LeaseTTL <= 0 {
		cfg.LeaseTTL = DefaultLeaseTTL
	}
	if cfg.KeepLost <= 0 {
		cfg.KeepLost = DefaultKeepLost
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	return &Server{
		cfg: cfg, log: cfg.Logger, workers: map[string]*entry{}, epochs: map[string]uint64{}, limits: newLimits(),
		watchers: map[chan struct{}]struct{}{},
	}
}

// Join serves one worker for as long as its stream lives.
func (s *Server) Join(stream tandemv1.RegistryService_JoinServer) (err error) {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	reg := first.GetRegistration()
	if err := s.check(reg); err != nil {
		s.log.Warn("worker refused", zap.String(telemetry.KeyWorker, reg.GetWorkerId()), zap.Error(err))
		return err
	}
	if err := known(stream.Context(), reg); err != nil {
		s.log.Warn("worker refused", zap.String(telemetry.KeyWorker, reg.GetWorkerId()), zap.Error(err))
		return err
	}
	host := peerHost(stream.Context())
	if err := s.limits.admit(host, time.Now()); err != nil {
		s.log.Warn("worker refused", zap.String(telemetry.KeyAddress, host), zap.Error(err))
		return err
	}
	defer s.limits.release(host)
	e, err := s.add(reg)
	if err != nil {
		s.log.Warn("worker refused", zap.String(telemetry.KeyWorker, reg.GetWorkerId()), zap.Error(err))
		return err
	}
	defer func() { s.remove(e, err) }()

	beats := make(chan *tandemv1.Heartbeat)
	updates := make(chan *tandemv1.Registration)
	recvErr := make(chan error, 1)
	go func() { recvErr <- receive(stream, beats, updates) }()

	var seq uint64
	if err := stream.Send(s.lease(e, seq)); err != nil {
		return err
	}
	ttl := time.NewTimer(s.cfg.LeaseTTL)
	defer ttl.Stop()
	for {
		select {
		case hb := <-beats:
			// A counter that is not a number is left out: counters are only displayed, and no reason to lose a worker.
			maps.DeleteFunc(hb.GetCounters(), func(_ string, n float64) bool { return math.IsNaN(n) || math.IsInf(n, 0) })
			if err := bounds.Check(hb); err != nil {
				s.log.Warn("heartbeat refused", zap.String(telemetry.KeyWorker, e.w.ID), zap.Error(err))
				return status.Error(codes.InvalidArgument, "heartbeat: "+err.Error())
			}
			ttl.Reset(s.cfg.LeaseTTL)
			seq = hb.GetSeq()
			s.beat(e, hb)
			if err := stream.Send(s.lease(e, seq)); err != nil {
				return err
			}
		case reg := <-updates:
			if err := s.checkUpdate(e, reg); err != nil {
				s.log.Warn("worker refused", zap.String(telemetry.KeyWorker, e.w.ID), zap.Error(err))
				return err
			}
			s.update(e, reg)
		case <-e.poke:
			if s.isReplaced(e) {
				return reasonError(codes.Aborted, "LEASE_REPLACED", "worker registered again on another stream")
			}
			if err := stream.Send(s.lease(e, seq)); err != nil {
				return err
			}
		case <-ttl.C:
			return reasonError(codes.DeadlineExceeded, "LEASE_EXPIRED", "no heartbeat within the lease")
		case err := <-recvErr:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// receive hands the worker's messages over until the stream ends, and returns why it did.
func receive(
	stream tandemv1.RegistryService_JoinServer, beats chan<- *tandemv1.Heartbeat, updates chan<- *tandemv1.Registration,
) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		var sent bool
		switch m := m.GetMessage().(type) {
		case *tandemv1.JoinRequest_Heartbeat:
			sent = pass(stream.Context(), beats, m.Heartbeat)
		case *tandemv1.JoinRequest_Registration:
			sent = pass(stream.Context(), updates, m.Registration)
		default:
			return status.Error(codes.InvalidArgument, "a message must be a registration or a heartbeat")
		}
		if !sent {
			return stream.Context().Err()
		}
	}
}

// pass hands v over; false means that ctx ended first.
func pass[T any](ctx context.Context, to chan<- T, v T) bool {
	select {
	case to <- v:
		return true
	case <-ctx.Done():
		return false
	}
}

// known compares a registration with the certificate of its connection.
func known(ctx context.Context, reg *tandemv1.Registration) error {
	info, ok := identity.FromContext(ctx)
	if !ok || info.Trusted {
		return nil
	}
	if says := (identity.Identity{Role: RoleName(reg.GetRole()), ID: reg.GetWorkerId()}); says != info.Identity {
		return reasonError(codes.PermissionDenied, "NOT_YOUR_NAME",
			"registration: says "+says.String()+", the certificate is for "+info.Identity.String())
	}
	return nil
}

// checkUpdate validates a later registration of a stream.
func (s *Server) checkUpdate(e *entry, reg *tandemv1.Registration) error {
	if reg.GetWorkerId() != e.w.ID || reg.GetRole() != e.w.Registration.GetRole() {
		return status.Error(codes.InvalidArgument, "registration: worker_id and role of a stream cannot change")
	}
	return s.check(reg)
}

// update replaces a worker's registration.
func (s *Server) update(e *entry, reg *tandemv1.Registration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.replaced {
		return
	}
	e.w.Registration = reg
	s.assign()
	for _, t := range s.workers {
		if slices.Contains(t.drafts, e.w.ID) {
			poke(t)
		}
	}
	s.notify()
}

// check validates a registration.
func (s *Server) check(reg *tandemv1.Registration) error {
	var field, problem string
	switch {
	case reg == nil:
		field, problem = "registration", "the first message must be a registration"
	case reg.GetWorkerId() == "":
		field, problem = "worker_id", "must have 1 to 128 bytes"
	case reg.GetRole() == tandemv1.Role_ROLE_UNSPECIFIED:
		field, problem = "role", "must be target, draft or prefill"
	case !dialable(reg.GetAddress()):
		field, problem = "address", "must be host:port or unix:///path"
	case !remotely(reg):
		field, problem = "remote_address", "must be host:port, and address unix:///path"
	default:
		if err := bounds.Check(reg); err != nil {
			field, problem, _ = strings.Cut(err.Error(), ": ")
		}
	}
	if field != "" {
		st, err := status.New(codes.InvalidArgument, "registration: "+field+": "+problem).WithDetails(&errdetails.BadRequest{
			FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: problem}},
		})
		if err != nil {
			return status.Error(codes.InvalidArgument, problem)
		}
		return st.Err()
	}
	if v := reg.GetProtocolVersion(); v != ProtocolVersion {
		return reasonError(codes.FailedPrecondition, "PROTOCOL_MISMATCH",
			"worker speaks protocol "+strconv.Itoa(int(v))+", the gateway "+strconv.Itoa(ProtocolVersion))
	}
	if s.cfg.Accept != nil {
		return s.cfg.Accept(reg)
	}
	return nil
}

// remotely reports whether a worker has no address for other hosts, or one that is of use beside its own.
func remotely(reg *tandemv1.Registration) bool {
	_, socket := unixsocket.Path(reg.GetAddress())
	remote := reg.GetRemoteAddress()
	return remote == "" || socket && !strings.HasPrefix(remote, "unix:") && dialable(remote)
}

// dialable reports whether an address has a form that peers reach; anything else would be taken for a name to look up.
func dialable(address string) bool {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return strings.HasPrefix(path, "/") && len(path) > 1
	}
	host, port, err := net.SplitHostPort(address)
	n, perr := strconv.Atoi(port)
	return err == nil && perr == nil && host != "" && n > 0 && n < 1<<16
}

// add puts a worker into the table, replacing an older lease of the same id.
func (s *Server) add(reg *tandemv1.Registration) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := reg.GetWorkerId()
	if err := s.room(id); err != nil {
		return nil, err
	}
	if old := s.workers[id]; old != nil {
		old.replaced = true
		poke(old)
	}
	s.epochs[id] = max(s.epochs[id], s.oldest) + 1
	now := time.Now()
	e := &entry{
		w:    Worker{ID: id, Epoch: s.epochs[id], State: StateStarting, Registration: reg, Joined: now, LastHeartbeat: now},
		poke: make(chan struct{}, 1),
	}
	s.workers[id] = e
	s.dropLost(now)
	s.assign()
	// A draft that came back may have another address: its targets must hear of it although the list of ids is the same.
	for _, t := range s.workers {
		if slices.Contains(t.drafts, id) {
			poke(t)
		}
	}
	s.notify()
	s.log.Info("worker joined", zap.String(telemetry.KeyWorker, id),
		zap.String(telemetry.KeyRole, RoleName(reg.GetRole())),
		zap.Uint64(telemetry.KeyEpoch, e.w.Epoch), zap.String(telemetry.KeyAddress, reg.GetAddress()),
		zap.String(telemetry.KeyBackend, reg.GetBackend()), zap.String(telemetry.KeyModel, reg.GetModel().GetName()))
	return e, nil
}

// beat records a heartbeat.
func (s *Server) beat(e *entry, hb *tandemv1.Heartbeat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.replaced {
		return
	}
	if p, old := hb.GetPrefixes(), e.w.Heartbeat.GetPrefixes(); p != nil && p.GetVersion() == old.GetVersion() {
		hb.Prefixes = &tandemv1.Prefixes{Version: p.GetVersion(), States: old.GetStates(), DiskTokenMs: p.GetDiskTokenMs()}
	}
	before := e.w.Heartbeat
	e.w.Heartbeat, e.w.LastHeartbeat = hb, time.Now()
	s.attached(before, hb)
	e.hear(hb.GetState() == StateDraining)
	s.turn(e)
	s.notify()
}

// remove marks a worker lost when its stream ends, with an error or without.
func (s *Server) remove(e *entry, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.replaced {
		return
	}
	e.w.Drained = e.w.State == StateDraining
	e.w.State, e.w.Idle, e.lostAt = StateLost, false, time.Now()
	s.assign()
	s.notify()
	level := zap.WarnLevel
	if e.w.Drained || s.ending {
		level = zap.InfoLevel
	}
	s.log.Log(level, "worker left", zap.String(telemetry.KeyWorker, e.w.ID),
		zap.String(telemetry.KeyRole, RoleName(e.w.Registration.GetRole())),
		zap.String(telemetry.KeyReason, leaveReason(e.w.Drained, err)))
}

// leaveReason says why a worker's stream ended.
func leaveReason(drained bool, err error) string {
	switch {
	case drained:
		return "it was told to end"
	case err == nil:
		return "it closed its stream without draining"
	case status.Code(err) == codes.Canceled, status.Code(err) == codes.Unavailable:
		return "its connection was lost: the process ended, or the network"
	}
	return status.Convert(err).Message()
}

func (s *Server) isReplaced(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.replaced
}

// lease builds the message that e's worker should have now.
func (s *Server) lease(e *entry, seq uint64) *tandemv1.JoinResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &tandemv1.Lease{
		LeaseTtlMs: int32(s.cfg.LeaseTTL.Milliseconds()), Epoch: e.w.Epoch, HeartbeatSeq: seq,
		Admission: e.admission.asked, Gateway: s.others.self, Gateways: s.others.gateways,
	}
	for _, id := range e.drafts {
		d := s.workers[id].w.Registration
		l.Peers = append(l.Peers, &tandemv1.Peer{WorkerId: id, Role: d.GetRole(),
			Address: d.GetAddress(), RemoteAddress: d.GetRemoteAddress(), SocketMadeUnixNs: d.GetSocketMadeUnixNs(),
			Model: d.GetModel()})
	}
	return &tandemv1.JoinResponse{Lease: l}
}

// ListTargets implements tandemv1.RegistryServiceServer.
func (s *Server) ListTargets(context.Context, *tandemv1.ListTargetsRequest) (*tandemv1.ListTargetsResponse, error) {
	out := &tandemv1.ListTargetsResponse{}
	for _, w := range s.Workers() {
		r := w.Registration
		if r.GetRole() != tandemv1.Role_ROLE_TARGET || w.State == StateLost || w.State == StateDraining {
			continue
		}
		out.Targets = append(out.Targets, &tandemv1.TargetEntry{WorkerId: w.ID, Address: r.GetAddress(),
			RemoteAddress: r.GetRemoteAddress(), SocketMadeUnixNs: r.GetSocketMadeUnixNs(),
			ModelDigest: r.GetModel().GetDigest(), ModelName: r.GetModel().GetName()})
	}
	return out, nil
}

// Workers returns all workers, lost ones included, ordered by role and id.
func (s *Server) Workers() []Worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLost(time.Now())
	out := make([]Worker, 0, len(s.workers))
	for _, e := range s.workers {
		w := e.w
		w.Drafts = slices.Clone(e.drafts)
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b Worker) int {
		if c := int(a.Registration.GetRole()) - int(b.Registration.GetRole()); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out
}

// Watch returns a channel that holds a value whenever something changed since it was last read, and a function that
// ends the watch. Changes are merged: read Workers after each value.
func (s *Server) Watch() (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	ch <- struct{}{}
	s.mu.Lock()
	s.watchers[ch] = struct{}{}
	s.mu.Unlock()
	return ch, func() {
		s.mu.Lock()
		delete(s.watchers, ch)
		s.mu.Unlock()
	}
}

// Ends says that the gateway ends: that workers lose their streams is no news then.
func (s *Server) Ends() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
}

// notify wakes the watchers; the caller holds mu.
func (s *Server) notify() {
	for ch := range s.watchers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// dropLost forgets workers that are lost for long; the caller holds mu.
func (s *Server) dropLost(now time.Time) {
	for id, e := range s.workers {
		if e.w.State == StateLost && now.Sub(e.lostAt) > s.cfg.KeepLost {
			s.forget(id)
		}
	}
}

// forget drops a worker from the table; the caller holds mu.
func (s *Server) forget(id string) {
	delete(s.workers, id)
	s.oldest = max(s.oldest, s.epochs[id])
	delete(s.epochs, id)
}

func poke(e *entry) {
	select {
	case e.poke <- struct{}{}:
	default:
	}
}

// RoleName returns the lower-case name of a role: target, draft, prefill or unspecified.
func RoleName(r tandemv1.Role) string {
	return strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_"))
}

// reasonError is a status with a stable reason.
func reasonError(code codes.Code, reason, msg string) error {
	st, err := status.New(code, msg).WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "tandem"})
	if err != nil {
		return status.Error(code, msg)
	}
	return st.Err()
}
