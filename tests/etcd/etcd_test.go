package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/services/shared"
	"github.com/tandem-inference/tandem/services/shared/etcdstore"
	"github.com/tandem-inference/tandem/services/shared/storetest"
	"github.com/tandem-inference/tandem/services/testwait"
	"github.com/tandem-inference/tandem/tests/cluster"
)

func open(t *testing.T, s *Server, prefix string) *etcdstore.Store {
	t.Helper()
	store, err := etcdstore.Open(t.Context(), etcdstore.Config{Endpoints: []string{s.Endpoint}, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

func TestStore(t *testing.T) {
	s := Start(t)
	storetest.Run(t, func(t *testing.T) shared.Store { return open(t, s, "tandem") })
}

// TestPrefix: clusters that share an etcd do not see each other.
func TestPrefix(t *testing.T) {
	s := Start(t)
	a, b := open(t, s, "a"), open(t, s, "/b/")
	if _, err := a.Put(t.Context(), "x", []byte("of a"), shared.Life{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), "x"); !errors.Is(err, shared.ErrNotFound) {
		t.Fatalf("the other cluster reads: %v", err)
	}
	if list, err := b.List(t.Context(), ""); err != nil || len(list) != 0 {
		t.Fatalf("the other cluster lists %v, %v", list, err)
	}
}

// TestLongList: more records than one answer of etcd has.
func TestLongList(t *testing.T) {
	store := open(t, Start(t), "long")
	want := 0
	for a := 'a'; a <= 'z'; a++ {
		for b := 'a'; b <= 'f'; b++ {
			if _, err := store.Put(t.Context(), "n/"+string(a)+string(b), nil, shared.Life{}); err != nil {
				t.Fatal(err)
			}
			want++
		}
	}
	list, err := store.List(t.Context(), "n/")
	if err != nil || len(list) != want || list[0].Key != "n/aa" || list[want-1].Key != "n/zf" {
		t.Fatalf("%d of %d records, %v", len(list), want, err)
	}
}

// TestAway: calls fail within their deadlines while etcd is away, and a watch goes on afterwards with what it missed.
func TestAway(t *testing.T) {
	s := Start(t)
	store := open(t, s, "away")
	events := store.Watch(t.Context(), "w/")
	if e := testwait.For(t, events, "the beginning"); e.Kind != shared.Synced {
		t.Fatalf("told %+v", e)
	}
	s.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := store.Put(ctx, "w/one", nil, shared.Life{}); err == nil {
		t.Fatal("a write without an etcd succeeds")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Fatalf("a call of half a second took %v", took)
	}
	s.Again(t)
	other := open(t, s, "away")
	if _, err := other.Put(t.Context(), "w/two", nil, shared.Life{}); err != nil {
		t.Fatal(err)
	}
	for {
		if e := testwait.For(t, events, "what was written meanwhile"); e.Record.Key == "w/two" {
			break
		}
	}
}

// TestNobodyThere: an etcd that cannot be reached is an error in a few seconds that names its address.
func TestNobodyThere(t *testing.T) {
	addresses, err := cluster.FreeAddresses("127.0.0.1", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = etcdstore.Open(t.Context(), etcdstore.Config{Endpoints: addresses}); err == nil {
		t.Fatal("opened")
	}
	t.Log(err)
}
