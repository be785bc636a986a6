package procwatch

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-inference/tandem/services/racetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errSilent = errors.New("no answer")

// TestVerdicts: which signs keep a process alive, and when the lack of them ends it. In virtual time.
func TestVerdicts(t *testing.T) {
	const limit = 3 * time.Second
	for name, test := range map[string]struct {
		answers time.Duration // until then pings are answered
		vitals  func(at time.Duration) Vitals
		from    time.Duration // when the verdict is due at the earliest and the latest; 0 = never
		to      time.Duration
	}{
		"answers": {time.Hour, func(time.Duration) Vitals { return Vitals{} }, 0, 0},
		"stopped": {10 * time.Second, func(time.Duration) Vitals { return Vitals{Stopped: true} },
			12 * time.Second, 14500 * time.Millisecond},
		"deadlocked": {10 * time.Second, func(time.Duration) Vitals { return Vitals{Ticks: 5} }, 12 * time.Second,
			14500 * time.Millisecond},
		"uses the processor": {10 * time.Second,
			func(at time.Duration) Vitals { return Vitals{Ticks: uint64(at / time.Second)} },
			308 * time.Second, 312 * time.Second},
		"waits for a disk": {10 * time.Second, func(time.Duration) Vitals { return Vitals{Busy: true} },
			308 * time.Second, 312 * time.Second},
		"swaps": {10 * time.Second,
			func(at time.Duration) Vitals { return Vitals{Faults: uint64(at / (2 * time.Second))} },
			308 * time.Second, 312 * time.Second},
		"under a debugger": {10 * time.Second, func(time.Duration) Vitals { return Vitals{Traced: true} }, 0, 0},
		"stopped for 2 s": {10 * time.Second, func(at time.Duration) Vitals {
			return Vitals{Stopped: at%(4*time.Second) < 2*time.Second, Busy: at%(4*time.Second) >= 2*time.Second}
		}, 308 * time.Second, 312 * time.Second},
		"never answered": {0, func(time.Duration) Vitals { return Vitals{} }, 300 * time.Second, 302 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			racetest.Bubble(t, func(t *testing.T) {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
				defer cancel()
				err := Watch(ctx, Config{PID: 1, Limit: limit, Ping: func(ctx context.Context) error {
					if time.Since(start) < test.answers {
						return nil
					}
					<-ctx.Done()
					return errSilent
				}, read: func(int) (Vitals, error) { return test.vitals(time.Since(start)), nil }})
				took := time.Since(start)
				var hung *HungError
				switch {
				case test.from == 0 && err != nil:
					t.Errorf("after %v: %v", took, err)
				case test.from > 0 && (!errors.As(err, &hung) || took < test.from || took > test.to):
					t.Errorf("after %v: %v", took, err)
				}
			})
		})
	}
}

// TestGone: the end of a process is no hang.
func TestGone(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		err := Watch(t.Context(), Config{PID: 1, Ping: func(context.Context) error { return errSilent },
			read: func(int) (Vitals, error) { return Vitals{}, os.ErrNotExist }})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestSleepingWatcher: time in which the watcher could not run is not the process's silence.
func TestSleepingWatcher(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		frozen := false
		err := Watch(ctx, Config{PID: 1, Limit: 3 * time.Second, Ping: func(ctx context.Context) error {
			// The process was frozen with us and answers a second after it is back.
			if at := time.Since(start); at > 5*time.Second && at < 26*time.Second {
				<-ctx.Done()
				return errSilent
			}
			return nil
		}, read: func(int) (Vitals, error) {
			if !frozen && time.Since(start) > 5*time.Second {
				frozen = true
				time.Sleep(20 * time.Second)
			}
			return Vitals{Stopped: time.Since(start) < 25*time.Second}, nil
		}})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestRead: a real process that sleeps, is stopped, works and ends.
func TestRead(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	until := func(what string, ok func(Vitals, error) bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			v, err := Read(cmd.Process.Pid)
			if ok(v, err) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %+v, %v", what, v, err)
			}
		}
	}
	until("asleep", func(v Vitals, err error) bool { return err == nil && !v.Busy && !v.Stopped && !v.Traced })
	_ = cmd.Process.Signal(syscall.SIGSTOP)
	until("stopped", func(v Vitals, err error) bool { return err == nil && v.Stopped && !v.Busy })
	_ = cmd.Process.Kill()
	until("gone, not waited for", func(_ Vitals, err error) bool { return errors.Is(err, os.ErrNotExist) })
	_ = cmd.Wait()
	until("gone", func(_ Vitals, err error) bool { return errors.Is(err, os.ErrNotExist) })
	// On one thread, or Read might look at each thread while it runs on the other.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	self, err := Read(os.Getpid())
	if err != nil || !self.Busy {
		t.Errorf("ourselves: %+v, %v", self, err)
	}
}

func TestParseLimit(t *testing.T) {
	for text, want := range map[string]time.Duration{"off": Off, "3s": 3 * time.Second, "1ms": 0,
		"x": 0, "": 0, "-3s": 0} {
		got, err := ParseLimit(text)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
