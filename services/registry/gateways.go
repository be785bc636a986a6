package registry

import (
	"slices"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// Gateway is a gateway of the cluster as workers reach it.
type Gateway struct {
	// ID is that of the process.
	ID string
	// Address is where workers join.
	Address string
}

// others is what a server knows of the other gateways of its cluster; guarded by Server.mu.
type others struct {
	self     string
	gateways []*tandemv1.Gateway
	// follows says that another gateway is there longer: workers take the drafts that it assigns.
	follows bool
}

// SetGateways tells the workers which gateways the cluster has, the one that is there longest first, and which of them
// this server is of. Workers join all of them. Their targets use the drafts that the first one assigns; the others
// assign what is attached, so that little changes when the first one goes.
func (s *Server) SetGateways(self string, all []Gateway) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := others{self: self, follows: len(all) > 0 && all[0].ID != self}
	for _, g := range all {
		now.gateways = append(now.gateways, &tandemv1.Gateway{Id: g.ID, Address: g.Address})
	}
	if now.self == s.others.self && sameGateways(now.gateways, s.others.gateways) {
		return
	}
	s.others = now
	for _, e := range s.workers {
		poke(e)
	}
	s.assign()
	s.notify()
}

func sameGateways(a, b []*tandemv1.Gateway) bool {
	return slices.EqualFunc(a, b, func(x, y *tandemv1.Gateway) bool {
		return x.GetId() == y.GetId() && x.GetAddress() == y.GetAddress()
	})
}

// keeps reports whether a target has a draft already; the caller holds mu.
func (s *Server) keeps(target, draft *entry) bool {
	if s.others.follows && target.w.Heartbeat != nil {
		return slices.Contains(target.w.Heartbeat.GetAttached(), draft.w.ID)
	}
	return slices.Contains(target.drafts, draft.w.ID)
}

// attached assigns again when what a target uses has changed and another gateway decides about it; the caller holds mu.
func (s *Server) attached(before, now *tandemv1.Heartbeat) {
	if s.others.follows && !slices.Equal(before.GetAttached(), now.GetAttached()) {
		s.assign()
	}
}
