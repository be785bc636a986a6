package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/tandem-inference/tandem/gateway/internal/apierror"
	"github.com/tandem-inference/tandem/gateway/internal/reqerr"
	"github.com/tandem-inference/tandem/gateway/internal/turn"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/registry"
)

// Admission says whether workers take work; services/registry implements it.
type Admission interface {
	Hold(worker string) error
	Open(worker string) error
	End(worker string) error
}

// mostDrain bounds the body of a request to drain, in bytes.
const mostDrain = 4 << 10

// drainAsk is the body of POST /cluster/drain.
type drainAsk struct {
	Worker string `json:"worker"`
	// Undo: the worker takes work again. Move: its requests go on at other workers that compute the same bits. Stop: its
	// process ends; only when it has no work left.
	Undo bool `json:"undo"`
	Move bool `json:"move"`
	Stop bool `json:"stop"`
}

// drainAnswer says what became of it.
type drainAnswer struct {
	Worker string `json:"worker"`
	Role   string `json:"role"`
	State  string `json:"state"`
	Busy   int    `json:"busy"`  // requests at work
	Empty  bool   `json:"empty"` // there are none, and none come
	Moving int    `json:"moving"`
	Detail string `json:"detail,omitempty"`
}

// drain makes a worker take no new work, or takes that back.
func (s *Server) drain(w http.ResponseWriter, r *http.Request) error {
	if !s.cfg.Keys.Open() && !turn.CallFrom(r.Context()).Trusted {
		return apierror.NotTrusted()
	}
	ask, err := readDrain(r)
	if err != nil {
		return err
	}
	var detail string
	moving := 0
	switch {
	case ask.Undo:
		err = s.admission.Open(ask.Worker)
	case ask.Stop:
		if e, ok := s.worker(ask.Worker); ok && !e.Empty {
			return reqerr.InvalidValue("stop", "the worker %q is %s and has %d requests at work: it can be told to end when it "+
				"is draining and empty", e.ID, e.State, e.LanesBusy)
		}
		err = s.admission.End(ask.Worker)
	default:
		err = s.admission.Hold(ask.Worker)
	}
	if err != nil {
		return reqerr.InvalidValue("worker", "%v", err)
	}
	if !ask.Undo && !ask.Stop {
		detail = s.without(ask.Worker)
	}
	if ask.Move {
		var stay int
		if moving, stay = s.targets.Move(ask.Worker); stay > 0 {
			detail = fmt.Sprintf("%d requests stay: no other worker that is ready has the contract id and a context for them",
				stay)
		}
	}
	e, _ := s.worker(ask.Worker)
	return writeJSON(w, http.StatusOK, drainAnswer{Worker: ask.Worker, Role: e.Role, State: e.State, Busy: e.LanesBusy,
		Empty: e.Empty, Moving: moving, Detail: detail})
}

func readDrain(r *http.Request) (ask drainAsk, err error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, mostDrain))
	if err != nil {
		return ask, err
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&ask); err != nil {
		return ask, reqerr.InvalidValue("body", "is no JSON object with worker, undo, move and stop: %v", err)
	}
	if ask.Worker == "" {
		return ask, reqerr.InvalidValue("worker", "is empty, must be the id of a worker")
	}
	if ask.Undo && (ask.Move || ask.Stop) {
		return ask, reqerr.InvalidValue("undo", "goes with neither move nor stop")
	}
	return ask, nil
}

// worker is the entry of a worker in /cluster.
func (s *Server) worker(id string) (e workerEntry, ok bool) {
	for _, e := range s.workers().Workers {
		if e.ID == id {
			return e, true
		}
	}
	return e, false
}

// without says what the cluster lacks while a worker takes no work; empty when others do the same.
func (s *Server) without(id string) string {
	var role tandemv1.Role
	workers := s.cluster.Workers()
	for _, w := range workers {
		if w.ID == id {
			role = w.Registration.GetRole()
		}
	}
	for _, w := range workers {
		if w.ID != id && w.State == registry.StateReady && w.Registration.GetRole() == role {
			return ""
		}
	}
	switch role {
	case tandemv1.Role_ROLE_TARGET:
		return "no other target is ready: new requests wait for one, and fail with no_worker if none comes; with undo this " +
			"one takes them again"
	case tandemv1.Role_ROLE_DRAFT:
		return "no other draft is ready: targets go on without one, with the same answers, slower"
	}
	return "no other scorer is ready: prompts are not compressed meanwhile"
}
