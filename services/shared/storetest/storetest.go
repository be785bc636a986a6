// Package storetest holds what every driver of package shared must pass.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/shared"
	"github.com/tandem-inference/tandem/services/testwait"
)

// Short is a time to live that drivers keep to; etcd has none below two seconds.
const Short = 2 * time.Second

// Run tests a driver. open returns another handle of one store, which is empty at the beginning of each call of Run;
// the handle is closed by the test, more than once in some.
func Run(t *testing.T, open func(t *testing.T) shared.Store) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, open func(*testing.T) shared.Store)
	}{
		{"Records", records}, {"Lists", lists}, {"Races", races}, {"Limits", limits}, {"TTL", ttl},
		{"SessionClosed", sessionClosed}, {"SessionDies", sessionDies}, {"SessionLives", sessionLives},
		{"Watch", watch}, {"WatchEnds", watchEnds}, {"WatchSlow", watchSlow}, {"Closed", closed},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.run(t, func(t *testing.T) shared.Store {
				s := open(t)
				t.Cleanup(func() { _ = s.Close() })
				return s
			})
		})
	}
}

func text(r shared.Record) string { return string(r.Value) }

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// want fails unless err is one of the package's errors.
func want(t *testing.T, err, is error) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Fatalf("the error is %v, not %v", err, is)
	}
}

func records(t *testing.T, open func(*testing.T) shared.Store) {
	ctx, a, b := t.Context(), open(t), open(t)
	_, err := a.Get(ctx, "r/one")
	want(t, err, shared.ErrNotFound)
	first := must[shared.Version](t)(a.Create(ctx, "r/one", []byte("1"), shared.Life{}))
	got := must[shared.Record](t)(b.Get(ctx, "r/one"))
	if text(got) != "1" || got.Version != first || got.Key != "r/one" {
		t.Fatalf("another handle reads %+v, written as version %q", got, first)
	}
	_, err = b.Create(ctx, "r/one", []byte("2"), shared.Life{})
	want(t, err, shared.ErrConflict)
	second := must[shared.Version](t)(b.Update(ctx, "r/one", []byte("2"), first, shared.Life{}))
	_, err = a.Update(ctx, "r/one", []byte("3"), first, shared.Life{})
	want(t, err, shared.ErrConflict)
	want(t, a.Delete(ctx, "r/one", first), shared.ErrConflict)
	if got := must[shared.Record](t)(a.Get(ctx, "r/one")); text(got) != "2" || got.Version != second {
		t.Fatalf("after writes that were refused: %+v", got)
	}
	// The same bytes again are another version.
	third := must[shared.Version](t)(a.Put(ctx, "r/one", []byte("2"), shared.Life{}))
	if third == second {
		t.Fatal("a write left the version as it was")
	}
	if err := a.Delete(ctx, "r/one", third); err != nil {
		t.Fatal(err)
	}
	want(t, b.Delete(ctx, "r/one", third), shared.ErrConflict)
	if err := b.Delete(ctx, "r/one", shared.AnyVersion); err != nil {
		t.Fatalf("nothing to delete: %v", err)
	}
	_, err = b.Update(ctx, "r/one", []byte("4"), third, shared.Life{})
	want(t, err, shared.ErrConflict)
	// A record that comes again is not the one that was there.
	again := must[shared.Version](t)(a.Create(ctx, "r/one", nil, shared.Life{}))
	if again == first {
		t.Fatal("a new record has the version of an old one")
	}
	if got := must[shared.Record](t)(b.Get(ctx, "r/one")); len(got.Value) != 0 {
		t.Fatalf("an empty value is read as %q", got.Value)
	}
}

func lists(t *testing.T, open func(*testing.T) shared.Store) {
	ctx, s := t.Context(), open(t)
	for _, key := range []string{"l/b", "l/a", "l/a/x", "la", "l.", "M/Upper_case-9"} {
		must[shared.Version](t)(s.Create(ctx, key, []byte(key), shared.Life{}))
	}
	got := ""
	for _, r := range must[[]shared.Record](t)(s.List(ctx, "l/")) {
		if text(r) != r.Key || r.Version == "" {
			t.Fatalf("listed %+v", r)
		}
		got += r.Key + " "
	}
	if got != "l/a l/a/x l/b " {
		t.Fatalf("listed %q", got)
	}
	if l := must[[]shared.Record](t)(s.List(ctx, "M/")); len(l) != 1 || l[0].Key != "M/Upper_case-9" {
		t.Fatalf("listed %v", l)
	}
	if l := must[[]shared.Record](t)(s.List(ctx, "nobody/")); len(l) != 0 {
		t.Fatalf("listed %v", l)
	}
}

// races: of writers that race, one wins.
func races(t *testing.T, open func(*testing.T) shared.Store) {
	ctx, s := t.Context(), open(t)
	const writers = 8
	race := func(name string, write func(i int) error) {
		var wg sync.WaitGroup
		errs := make([]error, writers)
		for i := range writers {
			wg.Go(func() { errs[i] = write(i) })
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else {
				want(t, err, shared.ErrConflict)
			}
		}
		if won != 1 {
			t.Fatalf("%s: %d of %d writers won", name, won, writers)
		}
	}
	race("create", func(i int) error {
		_, err := s.Create(ctx, "race", []byte{byte(i)}, shared.Life{})
		return err
	})
	was := must[shared.Record](t)(s.Get(ctx, "race")).Version
	race("update", func(i int) error {
		_, err := s.Update(ctx, "race", []byte{byte(i)}, was, shared.Life{})
		return err
	})
	was = must[shared.Record](t)(s.Get(ctx, "race")).Version
	race("delete", func(int) error { return s.Delete(ctx, "race", was) })
}

func limits(t *testing.T, open func(*testing.T) shared.Store) {
	ctx, s := t.Context(), open(t)
	if s.MaxValue() < 256<<10 {
		t.Fatalf("values have at most %d bytes", s.MaxValue())
	}
	// Bytes that no text has, and as many as the store says: up to 2 MiB, for stores with room for more.
	large := bytes.Repeat([]byte{0, 0xff, 0x80, '\n'}, min(s.MaxValue(), 2<<20)/4)
	must[shared.Version](t)(s.Put(ctx, "large", large, shared.Life{}))
	if got := must[shared.Record](t)(s.Get(ctx, "large")); !bytes.Equal(got.Value, large) {
		t.Fatalf("%d of %d bytes came back, or others", len(got.Value), len(large))
	}
	if s.MaxValue() < 16<<20 {
		_, err := s.Put(ctx, "large", make([]byte, s.MaxValue()+1), shared.Life{})
		want(t, err, shared.ErrTooLarge)
	}
	for _, key := range []string{"", "a b", "a:b", "ä", string(bytes.Repeat([]byte("k"), 200))} {
		if _, err := s.Put(ctx, key, nil, shared.Life{}); err == nil {
			t.Errorf("key %q is taken", key)
		}
	}
	must[shared.Version](t)(s.Put(ctx, string(bytes.Repeat([]byte("k"), 160)), nil, shared.Life{}))
	over, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Get(over, "large"); !errors.Is(err, context.Canceled) {
		t.Errorf("a call whose context is over: %v", err)
	}
}

// gone waits until a record is gone.
func gone(t *testing.T, s shared.Store, key string) {
	t.Helper()
	testwait.Until(t, key+" is gone", func() bool {
		_, err := s.Get(t.Context(), key)
		return errors.Is(err, shared.ErrNotFound)
	})
}

func ttl(t *testing.T, open func(*testing.T) shared.Store) {
	ctx, s := t.Context(), open(t)
	began := time.Now()
	must[shared.Version](t)(s.Put(ctx, "ttl/short", nil, shared.Life{TTL: Short}))
	// On a busy machine a record may be gone before it is written again: then once more.
	testwait.Until(t, "a record with a TTL is written again", func() bool {
		kept := must[shared.Version](t)(s.Put(ctx, "ttl/kept", nil, shared.Life{TTL: Short}))
		_, err := s.Update(ctx, "ttl/kept", []byte("stays"), kept, shared.Life{})
		if err != nil && !errors.Is(err, shared.ErrConflict) && !errors.Is(err, shared.ErrNotFound) {
			t.Fatal(err)
		}
		return err == nil
	})
	// Who was let go may be made again.
	gone(t, s, "ttl/short")
	if took := time.Since(began); took < Short {
		t.Fatalf("gone after %v", took)
	}
	must[shared.Version](t)(s.Create(ctx, "ttl/short", nil, shared.Life{}))
	if got := must[shared.Record](t)(s.Get(ctx, "ttl/kept")); text(got) != "stays" {
		t.Fatalf("a record that was written again without a TTL is %+v", got)
	}
}

func sessionClosed(t *testing.T, open func(*testing.T) shared.Store) {
	ctx, a, b := t.Context(), open(t), open(t)
	session := must[shared.Session](t)(a.NewSession(ctx, Short))
	must[shared.Version](t)(a.Create(ctx, "session/one", nil, shared.Life{Session: session}))
	left := must[shared.Version](t)(a.Create(ctx, "session/left", nil, shared.Life{Session: session}))
	must[shared.Version](t)(b.Update(ctx, "session/left", []byte("taken over"), left, shared.Life{}))
	if err := session.Close(ctx); err != nil {
		t.Fatal(err)
	}
	testwait.For(t, session.Done(), "the session's end")
	gone(t, b, "session/one")
	if got := must[shared.Record](t)(b.Get(ctx, "session/left")); text(got) != "taken over" {
		t.Fatalf("a record that left the session is %+v", got)
	}
	if _, err := a.Create(ctx, "session/late", nil, shared.Life{Session: session}); err == nil {
		// A driver that cannot tell at once must still remove it.
		gone(t, b, "session/late")
	}
}

// sessionDies: a process that goes without a word.
func sessionDies(t *testing.T, open func(*testing.T) shared.Store) {
	ctx, dies, b := t.Context(), open(t), open(t)
	session := must[shared.Session](t)(dies.NewSession(ctx, Short))
	must[shared.Version](t)(dies.Create(ctx, "dies/one", nil, shared.Life{Session: session}))
	events := b.Watch(ctx, "dies/")
	expect(t, events, "written dies/one", "synced")
	if err := dies.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, events, "deleted dies/one")
	gone(t, b, "dies/one")
}

// sessionLives: a session outlives its ttl by far while its process lives.
func sessionLives(t *testing.T, open func(*testing.T) shared.Store) {
	ctx, a, b := t.Context(), open(t), open(t)
	session := must[shared.Session](t)(a.NewSession(ctx, Short))
	must[shared.Version](t)(a.Create(ctx, "lives/one", nil, shared.Life{Session: session}))
	// Another record with the same time to live tells that it is over.
	for i := range 2 {
		key := fmt.Sprintf("lives/clock%d", i)
		must[shared.Version](t)(b.Put(ctx, key, nil, shared.Life{TTL: Short}))
		gone(t, b, key)
	}
	must[shared.Record](t)(b.Get(ctx, "lives/one"))
	select {
	case <-session.Done():
		t.Fatal("the session has ended")
	default:
	}
}

// expect reads events and compares them.
func expect(t *testing.T, events <-chan shared.Event, texts ...string) {
	t.Helper()
	for _, want := range texts {
		e := testwait.For(t, events, want)
		got := map[shared.EventKind]string{shared.Written: "written ", shared.Deleted: "deleted ",
			shared.Synced: "synced"}[e.Kind] + e.Record.Key
		if got != want {
			t.Fatalf("the watch tells %q, not %q", got, want)
		}
	}
}

func watch(t *testing.T, open func(*testing.T) shared.Store) {
	ctx, a, b := t.Context(), open(t), open(t)
	must[shared.Version](t)(a.Create(ctx, "w/b", nil, shared.Life{}))
	must[shared.Version](t)(a.Create(ctx, "w/a", []byte("first"), shared.Life{}))
	must[shared.Version](t)(a.Create(ctx, "wother", nil, shared.Life{}))
	events := b.Watch(ctx, "w/")
	expect(t, events, "written w/a", "written w/b", "synced")
	must[shared.Version](t)(a.Put(ctx, "w/a", []byte("second"), shared.Life{}))
	e := testwait.For(t, events, "the change")
	if e.Kind != shared.Written || text(e.Record) != "second" {
		t.Fatalf("told %+v", e)
	}
	if got := must[shared.Record](t)(b.Get(ctx, "w/a")); got.Version != e.Record.Version {
		t.Fatalf("told version %q, read %q", e.Record.Version, got.Version)
	}
	if err := a.Delete(ctx, "w/b", shared.AnyVersion); err != nil {
		t.Fatal(err)
	}
	expect(t, events, "deleted w/b")
	must[shared.Version](t)(b.Create(ctx, "w/c", nil, shared.Life{TTL: Short}))
	expect(t, events, "written w/c", "deleted w/c")
}

func watchEnds(t *testing.T, open func(*testing.T) shared.Store) {
	a := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	first, second := a.Watch(ctx, "e/"), a.Watch(t.Context(), "e/")
	expect(t, first, "synced")
	expect(t, second, "synced")
	cancel()
	ends(t, first)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	ends(t, second)
}

// ends waits for the end of a watch, after what it still has to tell.
func ends(t *testing.T, events <-chan shared.Event) {
	t.Helper()
	for limit := time.After(testwait.Limit); ; {
		select {
		case _, more := <-events:
			if !more {
				return
			}
		case <-limit:
			t.Fatal("the watch does not end")
		}
	}
}

// watchSlow: who reads late still learns the last state, and holds up nobody.
func watchSlow(t *testing.T, open func(*testing.T) shared.Store) {
	ctx, a := t.Context(), open(t)
	slow := a.Watch(ctx, "s/")
	const writes = 300
	for i := range writes {
		must[shared.Version](t)(a.Put(ctx, "s/one", fmt.Append(nil, i), shared.Life{}))
	}
	must[shared.Version](t)(a.Put(ctx, "s/two", nil, shared.Life{}))
	last := ""
	for e := range slow {
		if e.Record.Key == "s/one" {
			last = text(e.Record)
		}
		if e.Record.Key == "s/two" {
			break
		}
	}
	if last == "" {
		t.Fatal("nothing was told of a record")
	}
	// A watch that tells states, not changes, may tell the second record first.
	for last != fmt.Sprint(writes-1) {
		e := testwait.For(t, slow, "the last state")
		if e.Record.Key == "s/one" {
			last = text(e.Record)
		}
	}
}

func closed(t *testing.T, open func(*testing.T) shared.Store) {
	ctx, a := t.Context(), open(t)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Get(ctx, "x"); err == nil || errors.Is(err, shared.ErrNotFound) {
		t.Errorf("Get of a closed store: %v", err)
	}
	if _, err := a.Put(ctx, "x", nil, shared.Life{}); err == nil {
		t.Error("a closed store takes writes")
	}
	if _, err := a.NewSession(ctx, Short); err == nil {
		t.Error("a closed store begins a session")
	}
	ends(t, a.Watch(ctx, "x"))
}
