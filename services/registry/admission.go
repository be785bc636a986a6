package registry

import (
	"fmt"
	"slices"
	"strings"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/telemetry"
	"go.uber.org/zap"
)

// admission is what somebody asked of a worker; guarded by Server.mu.
//
// The worker keeps it, because all gateways must see it and a connection may be lost meanwhile: it says draining in its
// heartbeats. Until a heartbeat does, the gateway's own word counts, so that no work goes there in between.
type admission struct {
	asked tandemv1.Admission
	at    time.Time
	heard bool // a heartbeat was in line with it
}

// holds reports whether a worker gets no work although its heartbeats may not say so yet.
func (a admission) holds() bool {
	return a.asked == tandemv1.Admission_ADMISSION_HOLD || a.asked == tandemv1.Admission_ADMISSION_END
}

// Hold makes a worker take no new work, and finish what it has. The error names the workers that there are.
func (s *Server) Hold(id string) error { return s.admit(id, tandemv1.Admission_ADMISSION_HOLD) }

// Open takes Hold back.
func (s *Server) Open(id string) error { return s.admit(id, tandemv1.Admission_ADMISSION_OPEN) }

// End makes a worker's process end in order.
func (s *Server) End(id string) error { return s.admit(id, tandemv1.Admission_ADMISSION_END) }

func (s *Server) admit(id string, asked tandemv1.Admission) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.workers[id]
	if e == nil || e.w.State == StateLost {
		return s.unknown(id)
	}
	if e.admission.asked == asked {
		return nil
	}
	if e.admission.asked == tandemv1.Admission_ADMISSION_END {
		return fmt.Errorf("worker %q was told to end already", id)
	}
	e.admission = admission{asked: asked, at: time.Now()}
	s.log.Info("worker is told", zap.String(telemetry.KeyWorker, id), zap.String(telemetry.KeyReason,
		strings.ToLower(strings.TrimPrefix(asked.String(), "ADMISSION_"))))
	s.turn(e)
	poke(e)
	s.notify()
	return nil
}

// unknown names the workers that there are; the caller holds mu.
func (s *Server) unknown(id string) error {
	var there []string
	for id, e := range s.workers {
		if e.w.State != StateLost {
			there = append(there, id)
		}
	}
	if len(there) == 0 {
		return fmt.Errorf("there is no worker %q, nor any other", id)
	}
	slices.Sort(there)
	return fmt.Errorf("there is no worker %q, only %s", id, strings.Join(there, ", "))
}

// hear compares a heartbeat with what was asked of its worker; the caller holds mu.
func (e *entry) hear(draining bool) {
	a := &e.admission
	switch {
	case a.asked == tandemv1.Admission_ADMISSION_UNSPECIFIED:
	case a.holds() == draining:
		a.heard = true
	case a.heard:
		*a = admission{} // somebody asked otherwise, by another gateway
	}
}

// turn sets a worker's state, by its newest heartbeat and by what was asked of it; the caller holds mu.
func (s *Server) turn(e *entry) {
	state := e.w.Heartbeat.GetState()
	if state != StateReady && state != StateDraining {
		state = StateStarting
	}
	if e.admission.holds() {
		state = StateDraining
	}
	// Who was asked may be at work still that a heartbeat of before does not name.
	e.w.Idle = state == StateDraining && e.w.Heartbeat.GetLanesBusy() == 0 && !e.w.LastHeartbeat.Before(e.admission.at) &&
		(e.admission.asked == tandemv1.Admission_ADMISSION_UNSPECIFIED || e.admission.heard)
	if state != e.w.State {
		s.log.Info("worker state", zap.String(telemetry.KeyWorker, e.w.ID), zap.String(telemetry.KeyState, state))
		e.w.State = state
		s.assign()
	}
}
