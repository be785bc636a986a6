// Package testwait lets a test fail, instead of hang, when what it waits for never comes.
package testwait

import (
	"testing"
	"time"
)

// Limit is how long For and Until wait. Nothing promises a time: the machine may be busy with other things.
const Limit = time.Minute

// For returns the next value of ch, or its zero value when ch is closed. It ends the test with what if neither comes
// within Limit. Call it from the test's own goroutine.
func For[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(Limit):
		t.Fatalf("nothing within %v: %s", Limit, what)
		panic("unreachable")
	}
}

// Until returns when ok does, for a state that nothing announces: it polls. It ends the test with what if ok fails for
// Limit. Call it from the test's own goroutine.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Limit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nothing within %v: %s", Limit, what)
		}
	}
}
