package stagenet

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/rpcerr"
)

// TestExchange: a peer that sends once in a while stays, one that is silent for the limit is gone, and without a limit
// nobody is.
func TestExchange(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		const limit = time.Second
		var h heard
		start, sent := time.Now(), 0
		err := exchange(t.Context(), limit, func() error {
			if sent++; sent < 40 {
				h.n.Add(1)
			}
			return nil
		}, &h)
		if err == nil || !strings.Contains(err.Error(), "nothing for 1s") {
			t.Error(err)
		}
		if d := time.Since(start) - 39*limit/beats; d < limit || d > limit+limit/4 {
			t.Errorf("silence was noticed after %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := exchange(ctx, -1, func() error { return nil }, &h); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// TestVersions: a stage of another release is refused, with both versions.
func TestVersions(t *testing.T) {
	d := Description{Version: "v2", Stage: 2, Stages: 2, Layers: 4, First: 2, Last: 4, Digest: "d"}
	m := d.toProto()
	if err := d.differs(m); err != nil {
		t.Error(err)
	}
	m.EngineVersion++
	m.Version = "v9"
	if err := d.differs(m); !errors.Is(err, rpcerr.ProtocolMismatch) || !strings.Contains(err.Error(), "v9") ||
		!strings.Contains(err.Error(), "v2") {
		t.Error(err)
	}
	m = d.toProto()
	m.RowType = "bf16"
	if err := d.differs(m); !errors.Is(err, rpcerr.ProtocolMismatch) || !strings.Contains(err.Error(), "bf16") {
		t.Error(err)
	}
}
