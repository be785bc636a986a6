package pause

import (
	"context"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
)

func TestFor(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		for _, test := range []struct{ pause, deadline, waited time.Duration }{
			{time.Second, 2 * time.Second, time.Second}, {2 * time.Second, time.Second, time.Second}, {0, time.Second, 0},
		} {
			start := time.Now()
			ctx, stop := context.WithTimeout(t.Context(), test.deadline)
			passed := For(ctx, test.pause)
			stop()
			if waited := time.Since(start); passed != (test.pause < test.deadline) || waited != test.waited {
				t.Errorf("%v with a deadline of %v: waited %v, passed: %v", test.pause, test.deadline, waited, passed)
			}
		}
	})
}
