package shared_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/shared"
	"go.uber.org/zap"
)

// flaky is a store that does not answer while it hangs, and takes small values only.
type flaky struct {
	shared.Store
	hangs atomic.Bool
	calls atomic.Int32
}

func (f *flaky) MaxValue() int { return 1000 }

func (f *flaky) Get(ctx context.Context, key string) (shared.Record, error) {
	f.calls.Add(1)
	if f.hangs.Load() {
		<-ctx.Done()
		return shared.Record{}, ctx.Err()
	}
	return f.Store.Get(ctx, key)
}

func get(ctx context.Context, l *shared.Link) error {
	return l.Do(ctx, func(ctx context.Context, s shared.Store) error {
		_, err := s.Get(ctx, "x")
		return err
	})
}

// TestLinkBoundsWaiting: one call waits for a store that hangs, a second at most; the others fail at once until it is
// back.
func TestLinkBoundsWaiting(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		f := &flaky{Store: shared.NewEmbedded().Open()}
		l := shared.NewLink(f, zap.NewNop())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		if err := get(ctx, l); !errors.Is(err, shared.ErrNotFound) || l.Failures() != 0 {
			t.Fatalf("an answer of the store: %v, %d failures", err, l.Failures())
		}
		f.hangs.Store(true)
		began := time.Now()
		if err := get(ctx, l); !errors.Is(err, shared.ErrAway) || time.Since(began) > time.Second {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		before := f.calls.Load()
		began = time.Now()
		if err := get(ctx, l); !errors.Is(err, shared.ErrAway) || time.Since(began) != 0 || f.calls.Load() != before {
			t.Fatalf("%v after %v, %d calls", err, time.Since(began), f.calls.Load()-before)
		}
		if _, why := l.Away(); why == nil || l.Failures() != 2 {
			t.Errorf("away: %v, %d failures", why, l.Failures())
		}
		synctest.Wait()
		f.hangs.Store(false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if err := get(ctx, l); !errors.Is(err, shared.ErrNotFound) {
			t.Errorf("after it is back: %v", err)
		}
		// Who gives up did not find the store away.
		f.hangs.Store(true)
		gone, leave := context.WithTimeout(ctx, time.Millisecond)
		defer leave()
		if err := get(gone, l); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, shared.ErrAway) {
			t.Errorf("given up: %v", err)
		}
		f.hangs.Store(false)
		cancel()
		<-done
	})
}

// TestLargeValues: what one record does not hold comes back from several, which go with it.
func TestLargeValues(t *testing.T) {
	f := &flaky{Store: shared.NewEmbedded().Open()}
	l := shared.NewLink(f, zap.NewNop())
	random := make([]byte, 20_000)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	for name, value := range map[string][]byte{"small": []byte("x"), "dense": bytes.Repeat([]byte("abc"), 10_000),
		"random": random, "empty": {}} {
		packed, err := l.Pack(t.Context(), value, shared.Life{})
		if err != nil || len(packed) > f.MaxValue() {
			t.Fatalf("%s: %d bytes, %v", name, len(packed), err)
		}
		got, err := l.Unpack(t.Context(), packed)
		if err != nil || !bytes.Equal(got, value) {
			t.Errorf("%s: %d of %d bytes, %v", name, len(got), len(value), err)
		}
		parts, _ := f.List(t.Context(), "")
		if (len(parts) > 0) != (name == "random") {
			t.Errorf("%s: %d parts", name, len(parts))
		}
		l.DropParts(t.Context(), packed)
		if parts, _ := f.List(t.Context(), ""); len(parts) > 0 {
			t.Errorf("%s: %d parts are left", name, len(parts))
		}
	}
	if _, err := l.Pack(t.Context(), bytes.Repeat(random, 10), shared.Life{}); !errors.Is(err, shared.ErrTooLarge) {
		t.Errorf("more than the parts take: %v", err)
	}
	for _, bad := range [][]byte{nil, {}, {'x'}, []byte("p{"), []byte(`p{"count":100000}`), {'w', 1, 2, 3}} {
		if _, err := l.Unpack(t.Context(), bad); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}
