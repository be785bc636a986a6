package kubestore

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/shared"
	"github.com/tandem-inference/tandem/services/shared/storetest"
	"github.com/tandem-inference/tandem/services/testwait"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shortSweep lets tests see soon what is removed.
const shortSweep = 100 * time.Millisecond

func TestStore(t *testing.T) {
	a := newAPI(t)
	storetest.Run(t, func(t *testing.T) shared.Store { return a.open(t) })
}

// TestOpenRefused: who lacks a right, or finds no API server, learns it at the start.
func TestOpenRefused(t *testing.T) {
	a := newAPI(t)
	for _, what := range []string{"secrets", "leases"} {
		a.do(func() { a.forbid = what })
		if _, err := Open(t.Context(), a.config()); err == nil || !strings.Contains(err.Error(), "namespace tandem") {
			t.Errorf("without %s: %v", what, err)
		}
	}
	if _, err := Open(t.Context(), Config{Namespace: "x"}); err == nil {
		t.Error("outside of a pod a store opens")
	}
}

// TestWatchGoesOn: a watch outlives an API server that is away and one that has forgotten its version, and tells what
// changed meanwhile, once.
func TestWatchGoesOn(t *testing.T) {
	a := newAPI(t)
	s := a.open(t)
	put := func(key, value string) {
		t.Helper()
		if _, err := s.Put(t.Context(), key, []byte(value), shared.Life{}); err != nil {
			t.Fatal(err)
		}
	}
	put("w/stays", "1")
	put("w/goes", "1")
	events := s.Watch(t.Context(), "w/")
	next := func(want string) {
		t.Helper()
		e := testwait.For(t, events, want)
		if got := fmt.Sprintf("%d %s=%s", e.Kind, e.Record.Key, e.Record.Value); got != want {
			t.Fatalf("told %q, want %q", got, want)
		}
	}
	next("0 w/goes=1")
	next("0 w/stays=1")
	next("2 =")
	put("w/stays", "2")
	next("0 w/stays=2")
	a.do(func() {
		a.down = true
		close(a.changed)
		a.changed = make(chan struct{})
	})
	if _, err := s.Get(t.Context(), "w/stays"); err == nil || errors.Is(err, shared.ErrNotFound) {
		t.Errorf("Get while the API server is away: %v", err)
	}
	a.do(func() {
		a.down = false
		path := "secrets/" + nameOf("w/goes")
		a.note(path, "DELETED", a.objects[path])
		delete(a.objects, path)
	})
	next("1 w/goes=")
	a.lose()
	put("w/stays", "3")
	next("0 w/stays=3")
}

// TestCompressed: what can be shorter is, and damaged records are errors.
func TestCompressed(t *testing.T) {
	a := newAPI(t)
	s := a.open(t)
	if _, err := s.Put(t.Context(), "text", bytes.Repeat([]byte("text "), 1000), shared.Life{}); err != nil {
		t.Fatal(err)
	}
	a.do(func() {
		o := a.objects["secrets/"+nameOf("text")]
		if n := len(fmt.Sprint(o["data"])); n > 200 || o["type"] != secretType {
			t.Errorf("%d bytes for 5000, type %v", n, o["type"])
		}
		o["data"].(object)[packedValue] = "bm90IGd6aXA="
	})
	if r, err := s.Get(t.Context(), "text"); err == nil || errors.Is(err, shared.ErrNotFound) {
		t.Errorf("a damaged record: %q, %v", r.Value, err)
	}
	bomb, err := pack(make([]byte, 4<<20))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unpack(bomb); err == nil {
		t.Error("more bytes came out than a value may have")
	}
}

// TestOrphans: a record whose session was removed together with its process, without its records, goes.
func TestOrphans(t *testing.T) {
	a := newAPI(t)
	s, other := a.open(t), a.open(t)
	n, err := s.NewSession(t.Context(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for key, life := range map[string]shared.Life{"o/mine": {Session: n}, "o/free": {}} {
		if _, err := s.Put(t.Context(), key, nil, life); err != nil {
			t.Fatal(err)
		}
	}
	_ = s.Close()
	a.do(func() {
		path := "leases/" + n.(*session).name
		a.note(path, "DELETED", a.objects[path])
		delete(a.objects, path)
	})
	testwait.Until(t, "the orphan is gone", func() bool {
		_, err := other.Get(t.Context(), "o/mine")
		return errors.Is(err, shared.ErrNotFound)
	})
	if _, err := other.Get(t.Context(), "o/free"); err != nil {
		t.Errorf("a record without a session: %v", err)
	}
}

// TestSessionRemoved: a session that others ended tells its owner.
func TestSessionRemoved(t *testing.T) {
	a := newAPI(t)
	s := a.open(t)
	n, err := s.NewSession(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	a.do(func() { delete(a.objects, "leases/"+n.(*session).name) })
	testwait.For(t, n.Done(), "the session's end")
	if _, err := s.Put(t.Context(), "late", nil, shared.Life{Session: n}); err == nil {
		t.Error("a session that has ended takes records")
	}
}
