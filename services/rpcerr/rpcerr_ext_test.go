package rpcerr_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tandem-inference/tandem/services/rpcerr"
	"github.com/tandem-inference/tandem/services/testwait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faulty answers every health call with the error under test.
type faulty struct {
	grpc_health_v1.UnimplementedHealthServer
	err   error
	panic bool
}

func (f *faulty) Check(context.Context,
	*grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if f.panic {
		panic("broken invariant")
	}
	return nil, f.err
}

func (f *faulty) Watch(_ *grpc_health_v1.HealthCheckRequest, s grpc_health_v1.Health_WatchServer) error {
	if err := s.Send(&grpc_health_v1.HealthCheckResponse{}); err != nil {
		return err
	}
	return f.err
}

func dial(t *testing.T, f *faulty, onPanic rpcerr.PanicHandler) grpc_health_v1.HealthClient {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	s := grpc.NewServer(rpcerr.ServerOptions(onPanic)...)
	grpc_health_v1.RegisterHealthServer(s, f)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	c, err := grpc.NewClient("passthrough:///x", append(rpcerr.DialOptions(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(); s.Stop(); <-done })
	return grpc_health_v1.NewHealthClient(c)
}

func TestAcrossTheWire(t *testing.T) {
	private := rpcerr.New(codes.Aborted, "PRIVATE", "private")
	cases := []struct {
		name       string
		err        error
		code       codes.Code
		reason     string
		is, isNot  []error
		retry      time.Duration
		violations []rpcerr.Violation
		text       string
	}{
		{"sentinel", rpcerr.NoSlot, codes.ResourceExhausted, "NO_LANE",
			[]error{rpcerr.NoSlot, rpcerr.AnyResourceExhausted}, []error{rpcerr.QueueFull, rpcerr.AnyUnavailable}, 0,
			nil, "no slot is free"}, {"wrapped", fmt.Errorf("decode: %w", rpcerr.NoSlot), codes.ResourceExhausted, "NO_LANE",
			[]error{rpcerr.NoSlot}, nil, 0, nil, "decode: no slot is free"},
		{"retry", rpcerr.QueueFull.WithRetryAfter(1500 * time.Millisecond), codes.ResourceExhausted, "QUEUE_FULL",
			[]error{rpcerr.QueueFull}, nil, 1500 * time.Millisecond, nil, "the queue is full"},
		{"field", rpcerr.InvalidArgument("sampling.top_p", "must be in (0, 1], got %v", 2),
			codes.InvalidArgument, "INVALID_ARGUMENT",
			[]error{rpcerr.AnyInvalidArgument}, []error{rpcerr.ContextLength}, 0,
			[]rpcerr.Violation{{Field: "sampling.top_p", Message: "must be in (0, 1], got 2"}},
			"sampling.top_p: must be in (0, 1], got 2"},
		{"other text", rpcerr.EngineLost.With("engine %d is gone", 3), codes.Unavailable, "ENGINE_LOST",
			[]error{rpcerr.EngineLost, rpcerr.AnyUnavailable}, []error{rpcerr.Draining}, 0, nil, "engine 3 is gone"},
		{"cause", rpcerr.EngineLost.WithCause(io.ErrUnexpectedEOF), codes.Unavailable, "ENGINE_LOST",
			[]error{rpcerr.EngineLost}, []error{io.ErrUnexpectedEOF}, 0, nil, "the engine is gone: unexpected EOF"},
		{"cancelled", context.Canceled, codes.Canceled, "CANCELED", []error{context.Canceled},
			[]error{context.DeadlineExceeded}, 0, nil, "context canceled"},
		{"deadline", context.DeadlineExceeded, codes.DeadlineExceeded, "DEADLINE_EXCEEDED", []error{context.DeadlineExceeded},
			nil, 0, nil, "context deadline exceeded"},
		{"foreign", errors.New("boom"), codes.Internal, "INTERNAL", []error{rpcerr.AnyInternal}, nil, 0, nil, "boom"},
		{"status", status.Error(codes.DataLoss, "lost"), codes.DataLoss, "DATA_LOSS", []error{rpcerr.AnyDataLoss},
			[]error{rpcerr.DamagedState}, 0, nil, "lost"},
		{"private", private, codes.Aborted, "PRIVATE", []error{private, rpcerr.AnyAborted},
			[]error{rpcerr.StaleEpoch}, 0, nil, "private"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			client := dial(t, &faulty{err: c.err}, nil)
			_, unary := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
			w, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Recv(); err != nil {
				t.Fatal(err)
			}
			_, stream := w.Recv()
			for _, got := range []error{unary, stream} {
				if rpcerr.Code(got) != c.code || rpcerr.Reason(got) != c.reason || got.Error() != c.text {
					t.Errorf("got %v %v %q", rpcerr.Code(got), rpcerr.Reason(got), got.Error())
				}
				for _, target := range c.is {
					if !errors.Is(got, target) {
						t.Errorf("is not %v", target)
					}
				}
				for _, target := range c.isNot {
					if errors.Is(got, target) {
						t.Errorf("is %v", target)
					}
				}
				if rpcerr.RetryAfter(got) != c.retry {
					t.Errorf("retry after %v", rpcerr.RetryAfter(got))
				}
				if d := cmp.Diff(c.violations, rpcerr.From(got).Violations()); d != "" {
					t.Error(d)
				}
			}
		})
	}
}

func TestPanicBecomesInternal(t *testing.T) {
	told := make(chan string, 1)
	client := dial(t, &faulty{panic: true},
		func(method string, v any, stack []byte) { told <- fmt.Sprint(method, " ", v, " ", len(stack) > 0) })
	_, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if !errors.Is(err, rpcerr.AnyInternal) {
		t.Fatal(err)
	}
	if got := testwait.For(t, told, "the panic is reported"); got != "/grpc.health.v1.Health/Check broken invariant true" {
		t.Fatal(got)
	}
}

func TestImmutable(t *testing.T) {
	a := rpcerr.NoSlot.WithMetadata("lanes", "4")
	b := a.WithMetadata("busy", "4").WithViolation("x", "y").WithRetryAfter(time.Second).With("text")
	if len(rpcerr.NoSlot.Metadata()) != 0 || len(a.Metadata()) != 1 || len(b.Metadata()) != 2 || a.RetryAfter() != 0 ||
		len(a.Violations()) != 0 {
		t.Fatal(a, b)
	}
	if rpcerr.Code(nil) != codes.OK || rpcerr.Reason(nil) != "" || rpcerr.From(nil) != nil {
		t.Fatal("nil is not OK")
	}
}
