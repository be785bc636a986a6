// Package procwatch tells a process that hangs from one that is slow.
//
// A process lives as long as it gives signs of life: it answers pings, uses processor time, has a thread that runs,
// waits for a processor or waits for a disk, or brings pages in from disk or swap. One under a debugger counts as
// alive, too. A process that gives none of them for Config.Limit hangs: it was stopped (SIGSTOP), or all its threads
// wait for each other. One that still works but has not answered for AnswerFactor times as long hangs as well.
//
// Time counts only while the watcher itself runs. A pause in which it could not run, because the machine was suspended,
// its container frozen or the processors taken, counts as at most two of its periods.
package procwatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/services/pause"
)

const (
	// DefaultLimit is how long a process may give no sign of life.
	DefaultLimit = 3 * time.Second
	// AnswerFactor is how many limits long a process that works may leave pings unanswered. A process that has never
	// answered may still be starting, and has as much time.
	AnswerFactor = 100
)

// Off as a limit turns a watch off.
const Off = time.Duration(-1)

// ParseLimit reads a setting: a duration, or off.
func ParseLimit(text string) (time.Duration, error) {
	if text == "off" {
		return Off, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 100*time.Millisecond {
		return 0, fmt.Errorf("must be a duration of at least 100ms, or off, got %q", text)
	}
	return d, nil
}

// Config of a watch.
type Config struct {
	PID int
	// Ping asks the process something that it answers at once, whatever it works on. Nil means that it answered.
	Ping func(context.Context) error
	// Limit, 0 = DefaultLimit, negative = the watch is off.
	Limit time.Duration
	// read looks at the process; nil = Read. Tests replace it.
	read func(pid int) (Vitals, error)
}

// HungError says that a process hangs.
type HungError struct {
	PID    int
	Silent time.Duration // without a sign of life, or without an answer
	State  string
}

func (e *HungError) Error() string {
	return fmt.Sprintf("process %d hangs: %s for %v", e.PID, e.State, e.Silent.Round(100*time.Millisecond))
}

// Watch returns a *HungError when the process hangs, and nil when ctx ends or the process is gone.
func Watch(ctx context.Context, cfg Config) error {
	if cfg.Limit == 0 {
		cfg.Limit = DefaultLimit
	}
	if cfg.read == nil {
		cfg.read = Read
	}
	if cfg.Limit < 0 {
		<-ctx.Done()
		return nil
	}
	period := max(min(cfg.Limit/6, 500*time.Millisecond), 10*time.Millisecond)
	ctx, cancel := context.WithCancel(ctx)
	pongs := make(chan struct{}, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ping(ctx, cfg, period, pongs)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	var (
		before           Vitals
		silent, answered time.Duration // since the last sign of life, and the last answer
		ever             bool          // there was an answer
		last             = time.Now()
	)
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		now := time.Now()
		passed := min(now.Sub(last), 2*period)
		last = now
		select {
		case <-pongs:
			silent, answered, ever = 0, 0, true
			continue
		default:
		}
		v, err := cfg.read(cfg.PID)
		if err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			continue // what cannot be seen is not judged
		}
		answered += passed
		if v.Traced {
			answered = 0
		}
		if silent += passed; v.lives(before) {
			silent = 0
		}
		before = v
		switch {
		case ever && silent >= cfg.Limit:
			state := "no sign of life"
			if v.Stopped {
				state = "stopped"
			}
			return &HungError{cfg.PID, silent, state}
		case answered >= AnswerFactor*cfg.Limit:
			return &HungError{cfg.PID, answered, "no answer"}
		}
	}
}

// ping asks again and again until ctx ends.
func ping(ctx context.Context, cfg Config, period time.Duration, pongs chan<- struct{}) {
	for {
		attempt, cancel := context.WithTimeout(ctx, max(cfg.Limit, time.Second))
		err := cfg.Ping(attempt)
		cancel()
		if err == nil {
			select {
			case pongs <- struct{}{}:
			default:
			}
		}
		if !pause.For(ctx, period) {
			return
		}
	}
}

// Vitals is what the kernel says of a process at one time.
type Vitals struct {
	// Ticks of processor time and major page faults so far.
	Ticks, Faults uint64
	// Busy: a thread runs, could run, or waits for a device.
	Busy bool
	// Stopped: all threads are stopped by a signal. Traced: a debugger has stopped one.
	Stopped, Traced bool
}

// lives compares with an earlier look.
func (v Vitals) lives(before Vitals) bool {
	return v.Ticks > before.Ticks || v.Faults > before.Faults || v.Busy || v.Traced
}

// Read looks at a process. The error is os.ErrNotExist when it is gone, or was not waited for yet.
func Read(pid int) (Vitals, error) {
	var v Vitals
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	fields, err := stat(filepath.Join(dir, "stat"))
	if err != nil {
		return v, err
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return v, os.ErrNotExist
	}
	for i, to := range map[int]*uint64{9: &v.Faults, 11: &v.Ticks} {
		n, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return v, fmt.Errorf("%s/stat: field %d: %w", dir, i+3, err)
		}
		*to += n
	}
	system, err := strconv.ParseUint(fields[12], 10, 64)
	if err != nil {
		return v, fmt.Errorf("%s/stat: field 15: %w", dir, err)
	}
	v.Ticks += system
	threads, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		return v, err
	}
	v.Stopped = true
	for _, thread := range threads {
		fields, err := stat(filepath.Join(dir, "task", thread.Name(), "stat"))
		if err != nil {
			continue // it ended just now
		}
		state := fields[0]
		v.Busy = v.Busy || state == "R" || state == "D"
		v.Traced = v.Traced || state == "t"
		v.Stopped = v.Stopped && state == "T"
	}
	return v, nil
}

// stat reads a stat file of /proc and returns its fields from the state on: that is field 3 of proc(5).
func stat(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "no such process") {
			return nil, os.ErrNotExist
		}
		return nil, err
	}
	// pid (name) state …; the name may hold spaces and brackets.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 13 {
		return nil, fmt.Errorf("%s: %d fields after the name", path, len(fields))
	}
	return fields, nil
}
