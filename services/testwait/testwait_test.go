package testwait

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
)

// fatal notes what a test fails with.
type fatal struct {
	testing.TB
	text string
}

func (f *fatal) Helper() {}

func (f *fatal) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestFor(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		ch := make(chan int, 1)
		ch <- 7
		if got := For(t, ch, "a value"); got != 7 {
			t.Errorf("%d", got)
		}
		f := &fatal{TB: t}
		wait := For[int]
		go wait(f, ch, "another value")
		time.Sleep(Limit)
		synctest.Wait()
		if f.text != "nothing within 1m0s: another value" {
			t.Errorf("it failed with %q", f.text)
		}
		close(ch)
		if got := For(t, ch, "the end"); got != 0 {
			t.Errorf("%d", got)
		}
	})
}

func TestUntil(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		began := time.Now()
		Until(t, "a second is over", func() bool { return time.Since(began) >= time.Second })
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		f := &fatal{TB: t}
		wait := Until
		go wait(f, "never", func() bool { return false })
		time.Sleep(2 * Limit)
		synctest.Wait()
		if f.text != "nothing within 1m0s: never" {
			t.Errorf("it failed with %q", f.text)
		}
	})
}
