package racetest

import (
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestBubble: timers that run out at once in several goroutines do not end the program under the race detector, as they
// do on several processors, and the program has its processors again afterwards, also with bubbles side by side.
func TestBubble(t *testing.T) {
	before := runtime.GOMAXPROCS(4)
	defer runtime.GOMAXPROCS(before)
	t.Run("bubbles", func(t *testing.T) {
		for range 2 {
			t.Run("bubble", func(t *testing.T) {
				t.Parallel()
				Bubble(t, func(t *testing.T) {
					var group sync.WaitGroup
					for range 8 {
						group.Go(func() {
							for range 5000 {
								<-time.NewTimer(0).C
							}
						})
					}
					group.Wait()
				})
			})
		}
	})
	if n := runtime.GOMAXPROCS(0); n != 4 {
		t.Errorf("%d processors after the bubbles", n)
	}
}
