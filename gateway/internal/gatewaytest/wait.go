package gatewaytest

import (
	"testing"
	"time"
)

// Patience is how long tests wait for what must come. Nothing promises a time: the machine may be busy with other
// things.
const Patience = time.Minute

// Receive returns the next value of a channel; what says for what the test waits.
func Receive[T any](tb testing.TB, ch <-chan T, what string) T {
	tb.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(Patience):
		tb.Fatalf("never happened: %s", what)
		panic("unreachable")
	}
}

// Eventually waits for a state that another goroutine brings about. It polls because nothing announces it to tests.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(Patience)
	for !ok() {
		if time.Now().After(deadline) {
			tb.Fatalf("never happened: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
