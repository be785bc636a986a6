package auto

import (
	"testing"
	"time"
)

// TestWideSteps: joint steps are wider than any request's own; what was not measured costs in proportion to its rows.
func TestWideSteps(t *testing.T) {
	m := New()
	m.SetVerify(32, 32*time.Millisecond)
	for _, rows := range []int{32, 100, 300, 512, 1024} {
		want := time.Duration(rows) * time.Millisecond
		if got := m.Verify(rows, 0); got < want-time.Microsecond || got > want+time.Microsecond {
			t.Errorf("%d rows: %v, want %v", rows, got, want)
		}
	}
}
