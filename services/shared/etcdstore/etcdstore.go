// Package etcdstore keeps the records of package shared in etcd: sessions and times to live are leases, versions are
// revisions of keys. All keys begin with a prefix, so that several clusters may share an etcd.
package etcdstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/shared"
	mvcc "go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const (
	// maxValue leaves room for keys in a request, of which etcd takes 1.5 MiB unless it is told otherwise.
	maxValue = 1 << 20
	// pageSize is how many records a list asks for at a time: answers have a limit too.
	pageSize = 64
	// dialTimeout bounds the wait for the first answer.
	dialTimeout = 5 * time.Second
	// leastLease is the shortest time to live that etcd keeps to.
	leastLease = 2 * time.Second
	// revokeTimeout bounds the removal of a lease that is of no use.
	revokeTimeout = time.Second
	// rewatch is the pause before a watch that failed begins again.
	rewatch = 200 * time.Millisecond
)

// Config says how an etcd is reached.
type Config struct {
	// Endpoints are host:port of its members.
	Endpoints []string
	// Prefix begins all keys.
	Prefix string
	// TLS is nil for plaintext.
	TLS *tls.Config
	// User and Password are empty without authentication.
	User, Password string
	Logger         *zap.Logger
}

// Store is a store in etcd.
type Store struct {
	client *clientv3.Client
	prefix string
	log    *zap.Logger
}

// Open connects to an etcd, and fails when it does not answer.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: cfg.Endpoints, TLS: cfg.TLS, Username: cfg.User, Password: cfg.Password, DialTimeout: dialTimeout,
		DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 3 * time.Second, RejectOldCluster: false,
		// What a caller has given up is not tried again behind its back; calls have short deadlines of their own.
		MaxUnaryRetries: 1,
		// As everywhere: a TXT query would hold the gateway for 10 s on a network without a way out.
		DialOptions: []grpc.DialOption{grpc.WithDisableServiceConfig()},
		Logger:      zap.NewNop(), // its errors come back from the calls
	})
	if err != nil {
		return nil, err
	}
	s := &Store{client: client, prefix: strings.Trim(cfg.Prefix, "/") + "/", log: cfg.Logger}
	if _, err := s.Get(ctx, "reached"); err != nil && !errors.Is(err, shared.ErrNotFound) {
		_ = client.Close()
		return nil, fmt.Errorf("etcd at %s: %w", strings.Join(cfg.Endpoints, ", "), err)
	}
	return s, nil
}

// MaxValue implements shared.Store.
func (s *Store) MaxValue() int { return maxValue }

// Close implements shared.Store.
func (s *Store) Close() error { return s.client.Close() }

func (s *Store) record(kv *mvcc.KeyValue) shared.Record {
	return shared.Record{Key: strings.TrimPrefix(string(kv.Key), s.prefix), Value: kv.Value,
		Version: shared.Version(strconv.FormatInt(kv.ModRevision, 10))}
}

// Get implements shared.Store.
func (s *Store) Get(ctx context.Context, key string) (shared.Record, error) {
	got, err := s.client.Get(ctx, s.prefix+key)
	if err != nil {
		return shared.Record{}, failure(ctx, err)
	}
	if len(got.Kvs) == 0 {
		return shared.Record{}, shared.ErrNotFound
	}
	return s.record(got.Kvs[0]), nil
}

// List implements shared.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]shared.Record, error) {
	list, _, err := s.list(ctx, prefix)
	return list, err
}

// list returns the records of a prefix as they were at a revision.
func (s *Store) list(ctx context.Context, prefix string) (list []shared.Record, revision int64, err error) {
	from, end := s.prefix+prefix, clientv3.GetPrefixRangeEnd(s.prefix+prefix)
	for {
		options := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(pageSize),
			clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend)}
		if revision != 0 {
			options = append(options, clientv3.WithRev(revision))
		}
		got, err := s.client.Get(ctx, from, options...)
		if err != nil {
			return nil, 0, failure(ctx, err)
		}
		if revision == 0 {
			revision = got.Header.GetRevision()
		}
		for _, kv := range got.Kvs {
			list = append(list, s.record(kv))
		}
		if !got.More {
			return list, revision, nil
		}
		from = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
}

// Create implements shared.Store.
func (s *Store) Create(ctx context.Context, key string, value []byte, life shared.Life) (shared.Version, error) {
	absent := clientv3.Compare(clientv3.CreateRevision(s.prefix+key), "=", 0)
	return s.write(ctx, key, value, life, absent)
}

// Update implements shared.Store.
func (s *Store) Update(ctx context.Context, key string, value []byte, was shared.Version, life shared.Life) (
	shared.Version, error,
) {
	same, err := s.same(key, was)
	if err != nil {
		return "", err
	}
	return s.write(ctx, key, value, life, same)
}

// Put implements shared.Store.
func (s *Store) Put(ctx context.Context, key string, value []byte, life shared.Life) (shared.Version, error) {
	return s.write(ctx, key, value, life)
}

// same is the condition that a record has a version.
func (s *Store) same(key string, v shared.Version) (clientv3.Cmp, error) {
	revision, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || revision <= 0 {
		return clientv3.Cmp{}, fmt.Errorf("%s: %w: no version of etcd: %q", key, shared.ErrConflict, v)
	}
	return clientv3.Compare(clientv3.ModRevision(s.prefix+key), "=", revision), nil
}

func (s *Store) write(ctx context.Context, key string, value []byte, life shared.Life, fits ...clientv3.Cmp) (
	shared.Version, error,
) {
	if err := shared.CheckWrite(s, key, value, life); err != nil {
		return "", err
	}
	lease, own, err := s.lease(ctx, life)
	if err != nil {
		return "", err
	}
	done, err := s.client.Txn(ctx).If(fits...).Then(clientv3.OpPut(s.prefix+key, string(value),
		clientv3.WithLease(lease))).Commit()
	if err == nil && done.Succeeded {
		return shared.Version(strconv.FormatInt(done.Header.GetRevision(), 10)), nil
	}
	if own {
		s.revoke(ctx, lease)
	}
	if err != nil {
		return "", failure(ctx, err)
	}
	return "", shared.ErrConflict
}

// lease returns that of a life; own says that it was made for one record.
func (s *Store) lease(ctx context.Context, life shared.Life) (id clientv3.LeaseID, own bool, err error) {
	if session, ok := life.Session.(*session); ok {
		return session.lease, false, nil
	}
	if life.TTL == 0 {
		return clientv3.NoLease, false, nil
	}
	granted, err := s.client.Grant(ctx, wholeSeconds(life.TTL))
	if err != nil {
		return 0, false, failure(ctx, err)
	}
	return granted.ID, true, nil
}

// wholeSeconds is a time to live as etcd takes it.
func wholeSeconds(d time.Duration) int64 { return int64(math.Ceil(max(d, leastLease).Seconds())) }

// revoke ends a lease. One that stays expires.
func (s *Store) revoke(ctx context.Context, id clientv3.LeaseID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	_, _ = s.client.Revoke(ctx, id)
}

// Delete implements shared.Store.
func (s *Store) Delete(ctx context.Context, key string, was shared.Version) error {
	if was == shared.AnyVersion {
		_, err := s.client.Delete(ctx, s.prefix+key)
		return failure(ctx, err)
	}
	same, err := s.same(key, was)
	if err != nil {
		return err
	}
	done, err := s.client.Txn(ctx).If(same).Then(clientv3.OpDelete(s.prefix + key)).Commit()
	switch {
	case err != nil:
		return failure(ctx, err)
	case !done.Succeeded:
		return shared.ErrConflict
	}
	return nil
}

// failure is an error of the client. It says why a context ended, which the client reports as a status of its own.
func failure(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	return err
}

// Watch implements shared.Store.
func (s *Store) Watch(ctx context.Context, prefix string) <-chan shared.Event {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.client.Ctx(), cancel)
	m := shared.NewMirror()
	go func() {
		defer m.Close()
		defer cancel()
		defer stop()
		for ctx.Err() == nil {
			if err := s.follow(ctx, prefix, m); err != nil && ctx.Err() == nil {
				s.log.Debug("a watch begins again", zap.String("prefix", prefix), zap.Error(err))
				pause.For(ctx, rewatch)
			}
		}
	}()
	return m.Events()
}

// follow tells a full list and the changes after it until something fails.
func (s *Store) follow(ctx context.Context, prefix string, m *shared.Mirror) error {
	list, revision, err := s.list(ctx, prefix)
	if err != nil {
		return err
	}
	if !m.Reset(ctx, list) {
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	changes := s.client.Watch(ctx, s.prefix+prefix, clientv3.WithPrefix(), clientv3.WithRev(revision+1),
		clientv3.WithFragment())
	for c := range changes {
		if err := c.Err(); err != nil {
			return err
		}
		for _, e := range c.Events {
			told := shared.Event{Kind: shared.Written, Record: s.record(e.Kv)}
			if e.Type == clientv3.EventTypeDelete {
				told.Kind = shared.Deleted
			}
			if !m.Apply(ctx, told) {
				return ctx.Err()
			}
		}
	}
	return errors.New("the watch has ended")
}

// session is a lease that is kept alive.
type session struct {
	store *Store
	lease clientv3.LeaseID
	stop  context.CancelFunc
	done  chan struct{}
}

// NewSession implements shared.Store.
func (s *Store) NewSession(ctx context.Context, ttl time.Duration) (shared.Session, error) {
	granted, err := s.client.Grant(ctx, wholeSeconds(ttl))
	if err != nil {
		return nil, failure(ctx, err)
	}
	alive, stop := context.WithCancel(s.client.Ctx())
	beats, err := s.client.KeepAlive(alive, granted.ID)
	if err != nil {
		stop()
		s.revoke(ctx, granted.ID)
		return nil, failure(ctx, err)
	}
	n := &session{store: s, lease: granted.ID, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(n.done)
		defer stop()
		for range beats { // ends when the lease has, or alive
		}
	}()
	return n, nil
}

// Done implements shared.Session.
func (n *session) Done() <-chan struct{} { return n.done }

// Close implements shared.Session.
func (n *session) Close(ctx context.Context) error {
	n.stop()
	<-n.done
	_, err := n.store.client.Revoke(ctx, n.lease)
	return failure(ctx, err)
}
