// Package cputime limits work in tests by processor time, because elapsed time also depends on what else the
// machine does.
package cputime

import (
	"syscall"
	"testing"
	"time"
)

// Spent is the processor time of this process so far.
func Spent(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
