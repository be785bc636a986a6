package shmstream

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0
	futexWake = 1
)

// wait sleeps until *word is no longer value, somebody calls wake, or the time is over. It may also return without
// a reason.
func wait(word *uint32, value uint32, most time.Duration) {
	timeout := unix.NsecToTimespec(int64(most))
	// Errors are reasons to look again: the value has changed, a signal came, the time is over.
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value),
		uintptr(unsafe.Pointer(&timeout)), 0, 0)
}

// wake wakes all who wait for word, in every process.
func wake(word *uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1<<30, 0, 0, 0)
}
