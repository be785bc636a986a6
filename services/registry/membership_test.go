package registry

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/racetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// cluster is a network of gateways by their addresses, which are those that gRPC does not look up.
type cluster map[string]*hub

func (c cluster) dial(ctx context.Context, address string) (net.Conn, error) {
	if h := c[address]; h != nil {
		return h.dial(ctx, address)
	}
	return nil, errors.New("nobody is at " + address)
}

// tell makes the gateways with these ids, which are also their addresses, know each other.
func (c cluster) tell(ids ...string) {
	all := make([]Gateway, len(ids))
	for i, id := range ids {
		all[i] = Gateway{ID: id, Address: "passthrough:///" + id}
	}
	for _, id := range ids {
		c[id].srv.SetGateways(id, all)
	}
}

// guest is a worker of a cluster.
type guest struct {
	*Membership
	mu    sync.Mutex
	lease *tandemv1.Lease // told last
	stop  func()
}

func (g *guest) peers() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var ids []string
	for _, p := range g.lease.GetPeers() {
		ids = append(ids, p.GetWorkerId())
	}
	return strings.Join(ids, " ")
}

// visit lets a worker join. It says that it uses the drafts that it was told.
func visit(t *testing.T, c cluster, reg *tandemv1.Registration, addresses ...string) *guest {
	t.Helper()
	g := &guest{}
	for i, a := range addresses {
		addresses[i] = "passthrough:///" + a
	}
	var err error
	g.Membership, err = NewMembership(addresses, ClientConfig{
		Registration: reg,
		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(c.dial)},
		Heartbeat: func() *tandemv1.Heartbeat {
			g.mu.Lock()
			defer g.mu.Unlock()
			h := &tandemv1.Heartbeat{State: StateReady}
			for _, p := range g.lease.GetPeers() {
				h.Attached = append(h.Attached, p.GetWorkerId())
			}
			return h
		},
		OnLease: func(l *tandemv1.Lease) {
			g.mu.Lock()
			g.lease = l
			g.mu.Unlock()
			g.Notify()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	g.stop = func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v, want canceled", err)
		}
	}
	return g
}

// linger lets time go by, much more than anything here takes.
func linger() {
	time.Sleep(30 * time.Second)
	synctest.Wait()
}

// TestMembershipJoinsAll: a worker that is told of one gateway joins all that this one names, also those that come
// later, and stays at the others when one goes.
func TestMembershipJoinsAll(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		c := cluster{"a": newHub(ServerConfig{}), "b": newHub(ServerConfig{}), "c": newHub(ServerConfig{})}
		c.tell("a", "b")
		w := visit(t, c, target("t1"), "a")
		defer w.stop()
		linger()
		ready := map[string]string{"t1": StateReady}
		for _, id := range []string{"a", "b"} {
			if d := cmp.Diff(ready, states(c[id].srv)); d != "" {
				t.Error(id, d)
			}
		}
		c.tell("a", "b", "c")
		linger()
		if d := cmp.Diff(ready, states(c["c"].srv)); d != "" {
			t.Error("one that came later:", d)
		}
		c["a"].stop()
		c["b"].srv.SetGateways("b", []Gateway{{"b", "passthrough:///b"}, {"c", "passthrough:///c"}})
		c["c"].srv.SetGateways("c", []Gateway{{"b", "passthrough:///b"}, {"c", "passthrough:///c"}})
		linger()
		for _, id := range []string{"b", "c"} {
			workers := c[id].srv.Workers()
			if len(workers) != 1 || workers[0].State != StateReady || workers[0].Epoch != 1 {
				t.Errorf("after another one went, %s has %+v", id, workers)
			}
		}
		// A registration that changes reaches all.
		changed := target("t1")
		changed.Contract = "abc"
		w.Update(changed)
		linger()
		for _, id := range []string{"b", "c"} {
			if got := c[id].srv.Workers()[0].Registration.GetContract(); got != "abc" {
				t.Errorf("%s knows the contract %q", id, got)
			}
		}
		if n := w.Gateways(); n != 2 {
			t.Errorf("the worker holds %d leases", n)
		}
		c["b"].stop()
		c["c"].stop()
	})
}

// TestMembershipOneStreamEach: addresses of one gateway do not take each other's lease for ever.
func TestMembershipOneStreamEach(t *testing.T) {
	for _, addresses := range [][]string{{"a", "alias"}, {"alias", "a"}, {"alias"}} {
		racetest.Bubble(t, func(t *testing.T) {
			c := cluster{"a": newHub(ServerConfig{})}
			c["alias"] = c["a"]
			c.tell("a")
			w := visit(t, c, target("t1"), addresses...)
			defer w.stop()
			linger()
			before := c["a"].srv.Workers()[0]
			linger()
			after := c["a"].srv.Workers()[0]
			if before.Epoch != after.Epoch || after.State != StateReady || w.Gateways() != 1 {
				t.Errorf("%v: epoch %d, then %d, %s, %d leases", addresses, before.Epoch, after.Epoch, after.State, w.Gateways())
			}
			c["a"].stop()
		})
	}
}

// TestMembershipSameDrafts: targets use the drafts of the gateway that is there longest, whatever others would assign,
// and keep them when it goes.
func TestMembershipSameDrafts(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		c := cluster{"old": newHub(ServerConfig{}), "new": newHub(ServerConfig{})}
		// In this order the second draft serves both targets; had they come together, each would have one.
		var workers []*guest
		for _, reg := range []*tandemv1.Registration{target("t1"), target("t2"), draft("d2"), draft("d1")} {
			workers = append(workers, visit(t, c, reg, "old"))
			linger()
		}
		defer func() {
			for _, w := range workers {
				w.stop()
			}
		}()
		drafts := func() []string { return []string{workers[0].peers(), workers[1].peers()} }
		want := []string{"d1 d2", "d2"}
		if got := drafts(); !slices.Equal(got, want) {
			t.Fatalf("drafts %v", got)
		}
		c.tell("old", "new")
		linger()
		if got := drafts(); !slices.Equal(got, want) {
			t.Errorf("with another gateway: drafts %v", got)
		}
		for _, w := range c["new"].srv.Workers()[:len(want)] {
			if i := slices.Index([]string{"t1", "t2"}, w.ID); strings.Join(w.Drafts, " ") != want[i] {
				t.Errorf("the other gateway assigns %v to %s", w.Drafts, w.ID)
			}
		}
		c["old"].stop()
		c["new"].srv.SetGateways("new", []Gateway{{"new", "passthrough:///new"}})
		linger()
		if got := drafts(); !slices.Equal(got, want) {
			t.Errorf("after the first gateway went: drafts %v", got)
		}
		c["new"].stop()
	})
}
