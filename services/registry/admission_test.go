package registry

import (
	"strings"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// table is a server with workers whose first heartbeat says ready.
func table(t *testing.T, roles map[string]tandemv1.Role) *Server {
	t.Helper()
	s := NewServer(ServerConfig{})
	for id, role := range roles {
		e, err := s.add(&tandemv1.Registration{WorkerId: id, Role: role})
		if err != nil {
			t.Fatal(err)
		}
		s.beat(e, &tandemv1.Heartbeat{State: StateReady})
	}
	return s
}

// find returns a worker and what its lease says of admission.
func find(t *testing.T, s *Server, id string) (Worker, tandemv1.Admission) {
	t.Helper()
	for _, w := range s.Workers() {
		if w.ID == id {
			return w, s.lease(s.workers[id], 0).GetLease().GetAdmission()
		}
	}
	t.Fatalf("no worker %s", id)
	return Worker{}, 0
}

func TestHoldAndOpen(t *testing.T) {
	const hold, open = tandemv1.Admission_ADMISSION_HOLD, tandemv1.Admission_ADMISSION_OPEN
	s := table(t, map[string]tandemv1.Role{"a": tandemv1.Role_ROLE_TARGET, "b": tandemv1.Role_ROLE_TARGET})
	check := func(when, state string, idle bool, asked tandemv1.Admission) {
		t.Helper()
		if w, a := find(t, s, "a"); w.State != state || w.Idle != idle || a != asked {
			t.Errorf("%s: %s, idle %v, %v; want %s, %v, %v", when, w.State, w.Idle, a, state, idle, asked)
		}
	}
	beat := func(state string, busy int32) {
		s.beat(s.workers["a"], &tandemv1.Heartbeat{State: state, LanesBusy: busy})
	}
	if err := s.Hold("a"); err != nil {
		t.Fatal(err)
	}
	check("at once", StateDraining, false, hold)
	beat(StateReady, 0) // it was on its way
	check("a heartbeat of before", StateDraining, false, hold)
	beat(StateDraining, 1)
	check("it has work", StateDraining, false, hold)
	beat(StateDraining, 0)
	check("it has none", StateDraining, true, hold)
	if err := s.Open("a"); err != nil {
		t.Fatal(err)
	}
	check("opened, not heard", StateDraining, false, open)
	beat(StateReady, 0)
	check("opened", StateReady, false, open)
	beat(StateDraining, 0)
	check("held by another gateway", StateDraining, true, tandemv1.Admission_ADMISSION_UNSPECIFIED)
	if w, _ := find(t, s, "b"); w.State != StateReady {
		t.Errorf("the other worker is %s", w.State)
	}
	// The process joins again: it says itself that it drains, and nobody asks it to take work.
	if _, err := s.add(&tandemv1.Registration{WorkerId: "a", Role: tandemv1.Role_ROLE_TARGET}); err != nil {
		t.Fatal(err)
	}
	beat(StateDraining, 0)
	check("joined again", StateDraining, true, tandemv1.Admission_ADMISSION_UNSPECIFIED)
}

func TestHoldUnknown(t *testing.T) {
	s := table(t, map[string]tandemv1.Role{"b": tandemv1.Role_ROLE_TARGET, "a": tandemv1.Role_ROLE_DRAFT})
	if err := s.Hold("c"); err == nil || err.Error() != `there is no worker "c", only a, b` {
		t.Errorf("Hold = %v", err)
	}
	s.remove(s.workers["a"], nil)
	if err := s.Hold("a"); err == nil || !strings.HasSuffix(err.Error(), "only b") {
		t.Errorf("a lost worker: %v", err)
	}
	if err := NewServer(ServerConfig{}).Open("x"); err == nil || !strings.Contains(err.Error(), "nor any other") {
		t.Errorf("an empty table: %v", err)
	}
}

// TestHoldDraft: targets lose a draft that drains, and get it again.
func TestHoldDraft(t *testing.T) {
	s := table(t, map[string]tandemv1.Role{"t": tandemv1.Role_ROLE_TARGET, "d": tandemv1.Role_ROLE_DRAFT})
	drafts := func() int { w, _ := find(t, s, "t"); return len(w.Drafts) }
	if drafts() != 1 {
		t.Fatalf("%d drafts", drafts())
	}
	if err := s.Hold("d"); err != nil || drafts() != 0 {
		t.Errorf("%v, %d drafts", err, drafts())
	}
	if err := s.Open("d"); err != nil {
		t.Fatal(err)
	}
	s.beat(s.workers["d"], &tandemv1.Heartbeat{State: StateReady})
	if drafts() != 1 {
		t.Errorf("%d drafts after it was opened", drafts())
	}
}

func TestEnd(t *testing.T) {
	s := table(t, map[string]tandemv1.Role{"a": tandemv1.Role_ROLE_TARGET})
	if err := s.End("a"); err != nil {
		t.Fatal(err)
	}
	if w, a := find(t, s, "a"); w.State != StateDraining || a != tandemv1.Admission_ADMISSION_END {
		t.Errorf("%s, %v", w.State, a)
	}
	if s.Open("a") == nil {
		t.Error("a worker that ends was opened")
	}
	s.remove(s.workers["a"], nil)
	if w, _ := find(t, s, "a"); !w.Drained || w.Idle {
		t.Errorf("drained %v, idle %v", w.Drained, w.Idle)
	}
}
