package server

import tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"

// counters of the worker since its start, for heartbeats.
type counters struct {
	messages, proposals, skipped, nodes float64
	engineSeconds, appendSeconds        float64
	passes                              float64 // of earlier engines
}

func (s *Server) count(w *work) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.counters
	c.messages++
	if w.proposed {
		c.proposals++
		c.nodes += float64(w.tree.Nodes())
	}
	if w.skipped {
		c.skipped++
	}
	c.engineSeconds += (w.appended + w.forward).Seconds()
	c.appendSeconds += w.appended.Seconds()
}

// Heartbeat fills in slots and counters.
func (s *Server) Heartbeat(h *tandemv1.Heartbeat) {
	s.mu.Lock()
	c, engine, busy := s.counters, s.engine, len(s.slots)
	passes := c.passes + float64(s.joint.Counts().Passes)
	s.mu.Unlock()
	h.LanesBusy = int32(busy)
	h.Counters = map[string]float64{
		"messages": c.messages, "proposals": c.proposals, "proposals_skipped": c.skipped, "proposed_nodes": c.nodes,
		"engine_seconds": c.engineSeconds, "append_seconds": c.appendSeconds, "proposal_passes": passes,
	}
	if engine != nil {
		engine.Heartbeat(h)
	}
}
