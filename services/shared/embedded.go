package shared

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// embeddedMaxValue is the largest value of an embedded store.
const embeddedMaxValue = 64 << 20

// errClosed is what calls of a closed store get.
var errClosed = errors.New("the store is closed")

// Embedded is a store in the memory of a process. Each Open is what one gateway holds; with several of them in one
// process, as tests have, all see the same records.
type Embedded struct {
	mu      sync.Mutex // guards the following
	records map[string]*embeddedRecord
	version uint64
	changed chan struct{} // closed and replaced with every change
}

type embeddedRecord struct {
	Record
	expires *time.Timer // nil = none
	session *embeddedSession
}

// NewEmbedded returns a store without records.
func NewEmbedded() *Embedded {
	return &Embedded{records: map[string]*embeddedRecord{}, changed: make(chan struct{})}
}

// Open returns a handle of the store.
func (e *Embedded) Open() Store {
	ctx, cancel := context.WithCancel(context.Background())
	return &embeddedStore{e: e, open: ctx, close: cancel}
}

type embeddedStore struct {
	e     *Embedded
	open  context.Context // ends with Close
	close context.CancelFunc
}

type embeddedSession struct {
	e    *Embedded
	once sync.Once
	done chan struct{}
	stop func() bool // the wait for the handle to be closed
}

// MaxValue implements Store.
func (s *embeddedStore) MaxValue() int { return embeddedMaxValue }

// Close implements Store.
func (s *embeddedStore) Close() error {
	s.close()
	return nil
}

// usable says why a call cannot be made.
func (s *embeddedStore) usable(ctx context.Context) error {
	if s.open.Err() != nil {
		return errClosed
	}
	return ctx.Err()
}

// Get implements Store.
func (s *embeddedStore) Get(ctx context.Context, key string) (Record, error) {
	if err := s.usable(ctx); err != nil {
		return Record{}, err
	}
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	if r := s.e.records[key]; r != nil {
		return r.Record, nil
	}
	return Record{}, ErrNotFound
}

// List implements Store.
func (s *embeddedStore) List(ctx context.Context, prefix string) ([]Record, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	list, _ := s.e.list(prefix)
	return list, nil
}

// list returns the records of a prefix, and a channel that is closed when something changes.
func (e *Embedded) list(prefix string) ([]Record, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var list []Record
	for key, r := range e.records {
		if strings.HasPrefix(key, prefix) {
			list = append(list, r.Record)
		}
	}
	slices.SortFunc(list, func(a, b Record) int { return strings.Compare(a.Key, b.Key) })
	return list, e.changed
}

// Create implements Store.
func (s *embeddedStore) Create(ctx context.Context, key string, value []byte, life Life) (Version, error) {
	return s.write(ctx, key, value, life, func(r *embeddedRecord) bool { return r == nil })
}

// Update implements Store.
func (s *embeddedStore) Update(ctx context.Context, key string, value []byte, was Version, life Life) (
	Version, error,
) {
	return s.write(ctx, key, value, life, func(r *embeddedRecord) bool { return r != nil && r.Version == was })
}

// Put implements Store.
func (s *embeddedStore) Put(ctx context.Context, key string, value []byte, life Life) (Version, error) {
	return s.write(ctx, key, value, life, func(*embeddedRecord) bool { return true })
}

func (s *embeddedStore) write(ctx context.Context, key string, value []byte, life Life,
	fits func(*embeddedRecord) bool,
) (Version, error) {
	if err := s.usable(ctx); err != nil {
		return "", err
	}
	if err := CheckWrite(s, key, value, life); err != nil {
		return "", err
	}
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if !fits(e.records[key]) {
		return "", ErrConflict
	}
	session, _ := life.Session.(*embeddedSession)
	if session != nil && session.ended() {
		return "", errors.New("the session has ended")
	}
	e.drop(key)
	e.version++
	r := &embeddedRecord{Record: Record{key, bytes.Clone(value), Version(strconv.FormatUint(e.version, 10))},
		session: session}
	if life.TTL > 0 {
		r.expires = time.AfterFunc(life.TTL, func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.records[key] == r {
				e.drop(key)
				e.notify()
			}
		})
	}
	e.records[key] = r
	e.notify()
	return r.Version, nil
}

// drop removes a record; the caller holds mu.
func (e *Embedded) drop(key string) {
	if r := e.records[key]; r != nil && r.expires != nil {
		r.expires.Stop()
	}
	delete(e.records, key)
}

// notify wakes the watches; the caller holds mu.
func (e *Embedded) notify() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// Delete implements Store.
func (s *embeddedStore) Delete(ctx context.Context, key string, was Version) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	r := s.e.records[key]
	if was != AnyVersion && (r == nil || r.Version != was) {
		return ErrConflict
	}
	if r != nil {
		s.e.drop(key)
		s.e.notify()
	}
	return nil
}

// Watch implements Store.
func (s *embeddedStore) Watch(ctx context.Context, prefix string) <-chan Event {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.open, cancel)
	m := NewMirror()
	go func() {
		defer m.Close()
		defer cancel()
		defer stop()
		for {
			list, changed := s.e.list(prefix)
			if !m.Reset(ctx, list) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return m.Events()
}

// NewSession implements Store. The store sees at once when a handle is closed; the session ends ttl later, as that of
// a process that died.
func (s *embeddedStore) NewSession(ctx context.Context, ttl time.Duration) (Session, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	n := &embeddedSession{e: s.e, done: make(chan struct{})}
	stop := context.AfterFunc(s.open, func() {
		silent := time.NewTimer(ttl)
		defer silent.Stop()
		select {
		case <-silent.C:
			n.end()
		case <-n.done:
		}
	})
	n.stop = stop
	return n, nil
}

// Done implements Session.
func (n *embeddedSession) Done() <-chan struct{} { return n.done }

// Close implements Session.
func (n *embeddedSession) Close(context.Context) error {
	n.end()
	return nil
}

func (n *embeddedSession) ended() bool {
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

// end removes the session's records.
func (n *embeddedSession) end() {
	n.once.Do(func() {
		n.e.mu.Lock()
		defer n.e.mu.Unlock()
		close(n.done)
		n.stop()
		for key, r := range n.e.records {
			if r.session == n {
				n.e.drop(key)
			}
		}
		n.e.notify()
	})
}
