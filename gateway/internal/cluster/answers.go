package cluster

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

const (
	// answerTime is how long a worker may take to answer whether it is there.
	answerTime = 700 * time.Millisecond
	// answerTrips is how many times the round trip of its heartbeats it may take, where that is longer: on a busy machine,
	// or over a slow link, an answer takes longer as well.
	answerTrips = 20
	// recentTrips is how many of the newest heartbeats the shortest round trip counts of: one that took long says
	// nothing, and a worker that is lost right after it would be waited for.
	recentTrips = 3
	// longestAnswer bounds both: the lease of a worker that sends nothing ends before.
	longestAnswer = 10 * time.Second
)

// Answers asks the slot's worker whether it is there, and reports false when no answer came in time. Any answer is one,
// refusals too, and so is the end of ctx or of the connection, which ends the worker's streams by itself. A worker that
// does not answer gets no further work until it has sent a heartbeat.
func (l *Slot) Answers(ctx context.Context) bool {
	ask, cancel := context.WithTimeout(ctx, l.answerTime())
	defer cancel()
	_, err := healthv1.NewHealthClient(l.Conn).Check(ask, &healthv1.HealthCheckRequest{})
	if ctx.Err() != nil || status.Code(err) != codes.DeadlineExceeded {
		return true
	}
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	l.w.suspect = time.Now()
	return false
}

func (l *Slot) answerTime() time.Duration {
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	return max(answerTime, min(answerTrips*l.w.trips.shortest(), longestAnswer))
}

// trips are the round trips of the newest heartbeats.
type trips struct {
	newest [recentTrips]time.Duration
	n      int
}

// observe adds that of a heartbeat, 0 when it was not measured.
func (t *trips) observe(h *tandemv1.Heartbeat) {
	if ms := h.GetRttMs(); ms > 0 {
		t.newest[t.n%recentTrips] = time.Duration(ms * float64(time.Millisecond))
		t.n++
	}
}

// shortest is 0 before the first.
func (t *trips) shortest() time.Duration {
	if t.n == 0 {
		return 0
	}
	return slices.Min(t.newest[:min(t.n, recentTrips)])
}
