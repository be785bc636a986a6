// Package gateways is a gateway's place among those of its cluster: it holds a session in the shared store, says where
// it is reached, and knows which others there are (docs/design.md §2).
package gateways

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/registry"
	"github.com/tandem-inference/tandem/services/shared"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/unixsocket"
	"go.uber.org/zap"
)

// prefix begins the records of gateways.
const prefix = "gateways/"

const (
	// sessionTTL is after how much silence a gateway counts as gone: its responses may then be taken over.
	sessionTTL = 3 * time.Second
	// again is the pause before a session that could not be had is tried again.
	again = 500 * time.Millisecond
	// dialTimeout is that of the question whether anything listens at another gateway's address.
	dialTimeout = 200 * time.Millisecond
	// leaveTimeout bounds the end of a session.
	leaveTimeout = time.Second
)

// Info is what a gateway says of itself.
type Info struct {
	// ID is that of the process.
	ID string `json:"id"`
	// Workers is where workers join, Clients where clients are answered.
	Workers string `json:"workers"`
	Clients string `json:"clients"`
	Version string `json:"version"`
	// Began is when the process began, in nanoseconds since 1970.
	Began int64 `json:"began"`
}

// Deps of a Node.
type Deps struct {
	Link *shared.Link
	// Changed is told all gateways, those that are there longest first; nil = not wanted.
	Changed func(self string, all []registry.Gateway)
	Logger  *zap.Logger
}

// Node is one gateway of a cluster. It is safe for concurrent use.
type Node struct {
	self Info
	deps Deps
	log  *zap.Logger

	mu      sync.Mutex // guards the following
	known   map[string]Info
	changed chan struct{} // closed and replaced when known changes
}

// New returns a gateway that joins the others with Run.
func New(self Info, deps Deps) *Node {
	n := &Node{self: self, deps: deps, log: deps.Logger, known: map[string]Info{}, changed: make(chan struct{})}
	n.tell()
	return n
}

// ID is the gateway's own.
func (n *Node) ID() string { return n.self.ID }

// Link is the way to what the gateways share.
func (n *Node) Link() *shared.Link { return n.deps.Link }

// Run keeps the gateway among the others until ctx ends, then leaves.
func (n *Node) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { _ = n.deps.Link.Run(ctx) })
	parts.Go(func() { n.watch(ctx) })
	for ctx.Err() == nil {
		session, err := n.enter(ctx)
		if err != nil {
			n.log.Debug("no session in the gateways' store yet", zap.NamedError(telemetry.KeyErr, err))
			pause.For(ctx, again)
			continue
		}
		select {
		case <-session.Done():
			n.log.Warn("the session in the gateways' store has ended: others may take over what runs here")
		case <-ctx.Done():
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
			defer cancel()
			if err := session.Close(end); err != nil {
				n.log.Debug("the session ends by its time", zap.NamedError(telemetry.KeyErr, err))
			}
		}
	}
	return nil
}

// enter begins a session and says where the gateway is.
func (n *Node) enter(ctx context.Context) (session shared.Session, err error) {
	body, err := json.Marshal(n.self)
	if err != nil {
		return nil, err
	}
	err = n.deps.Link.Do(ctx, func(ctx context.Context, s shared.Store) (err error) {
		if session, err = s.NewSession(ctx, sessionTTL); err != nil {
			return err
		}
		if _, err = s.Put(ctx, prefix+n.self.ID, body, shared.Life{Session: session}); err != nil {
			_ = session.Close(ctx)
		}
		return err
	})
	return session, err
}

// watch follows the records of the gateways.
func (n *Node) watch(ctx context.Context) {
	for e := range n.deps.Link.Watch(ctx, prefix) {
		id := strings.TrimPrefix(e.Record.Key, prefix)
		n.mu.Lock()
		switch e.Kind {
		case shared.Written:
			var info Info
			if err := json.Unmarshal(e.Record.Value, &info); err != nil || info.ID != id {
				n.log.Warn("a gateway's record cannot be read", zap.String("key", e.Record.Key))
				break
			}
			n.known[id] = info
		case shared.Deleted:
			delete(n.known, id)
		case shared.Synced:
		}
		close(n.changed)
		n.changed = make(chan struct{})
		n.mu.Unlock()
		n.tell()
	}
}

// tell reports the present list.
func (n *Node) tell() {
	if n.deps.Changed == nil {
		return
	}
	all := n.All()
	list := make([]registry.Gateway, len(all))
	for i, g := range all {
		list[i] = registry.Gateway{ID: g.ID, Address: g.Workers}
	}
	n.deps.Changed(n.self.ID, list)
}

// All are the gateways of the cluster, this one too, those that are there longest first.
func (n *Node) All() []Info {
	n.mu.Lock()
	known := maps.Clone(n.known)
	n.mu.Unlock()
	known[n.self.ID] = n.self // also while its session is lost
	return slices.SortedFunc(maps.Values(known), func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.Began, b.Began), strings.Compare(a.ID, b.ID))
	})
}

// Alive reports whether a gateway is there, and a channel that is closed when that may have changed. While the store is
// away all count as there: nobody could take over anything.
func (n *Node) Alive(id string) (bool, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id == n.self.ID {
		return true, n.changed
	}
	_, ok := n.known[id]
	_, away := n.deps.Link.Away()
	return ok || away != nil, n.changed
}

// Gone reports whether a gateway that Alive still takes to be there, because its session has not ended, is known to
// have ended: a newer one has its address, or nothing listens there. A gateway that gives no sign, or cannot be reached
// from here, is left to its session. To be wrong is harmless: a response that two gateways generate has the same bits
// at both, and one of them keeps it.
func (n *Node) Gone(ctx context.Context, id string) bool {
	all := n.All()
	at := slices.IndexFunc(all, func(i Info) bool { return i.ID == id })
	if at < 0 || id == n.self.ID {
		return false
	}
	address := all[at].Workers
	if slices.ContainsFunc(all[at+1:], func(i Info) bool { return i.Workers == address }) {
		return true
	}
	if !config.Exposed(address) && config.Exposed(n.self.Workers) {
		return false // perhaps the loopback of another host
	}
	network, target := "tcp", address
	if path, ok := unixsocket.Path(address); ok {
		network, target = "unix", path
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, target)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}
