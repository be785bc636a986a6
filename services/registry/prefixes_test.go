package registry

import (
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
)

// TestPrefixes: states that have not changed are sent once a stream, and stay known.
func TestPrefixes(t *testing.T) {
	version := uint64(7)
	states := []*tandemv1.PrefixState{{Digest: 1, Tokens: 2}}
	c := &Client{cfg: ClientConfig{Heartbeat: func() *tandemv1.Heartbeat {
		return &tandemv1.Heartbeat{State: StateReady, Prefixes: &tandemv1.Prefixes{Version: version, States: states}}
	}}}
	s := NewServer(ServerConfig{})
	e := &entry{w: Worker{Registration: &tandemv1.Registration{}, State: StateReady}}
	beat := func(seq uint64) (sent, known int) {
		hb := c.heartbeat(seq, time.Millisecond).GetHeartbeat()
		sent = len(hb.GetPrefixes().GetStates())
		s.beat(e, hb)
		return sent, len(e.w.Heartbeat.GetPrefixes().GetStates())
	}
	for i, want := range []struct {
		seq         uint64
		sent, known int
		change      bool
	}{
		{1, 1, 1, false}, {2, 0, 1, false}, {3, 0, 1, true}, {4, 2, 2, false}, {5, 0, 2, false},
		{1, 2, 2, false}, // another stream
	} {
		sent, known := beat(want.seq)
		if sent != want.sent || known != want.known {
			t.Errorf("heartbeat %d: %d states are sent and %d known, want %+v", i, sent, known, want)
		}
		if want.change {
			version++
			states = append(states, &tandemv1.PrefixState{Digest: 3, Tokens: 4})
		}
	}
}
