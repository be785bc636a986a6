// Package kubestore keeps the records of package shared in Kubernetes: a record is a Secret, a session a Lease that is
// renewed, a version the resource's own. It needs the rights to get, list, watch, create, update and delete both in its
// namespace, which should hold no other Secrets.
//
// Kubernetes itself lets nothing expire. Every store of a cluster looks for sessions that nobody renews, by the time
// that passes here, so that clocks need not agree, and removes them with their records. Records with a time to live are
// removed some time after it; until then Get, List and Watch leave them out, which needs clocks that agree to within
// what the time to live is worth.
package kubestore

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-inference/tandem/services/shared"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

const (
	// maxValue leaves room in a Secret, which takes 1 MiB, for a value that cannot be compressed.
	maxValue = 1<<20 - 4096
	// pageSize is how many records a list asks for at a time.
	pageSize = 64
	// defaultSweep is the pause between two looks for records whose time to live is over.
	defaultSweep = 15 * time.Second
	// mostLook is the longest pause between two looks at sessions.
	mostLook = time.Second
	// openTimeout bounds the wait for the API server's first answer.
	openTimeout = 10 * time.Second
	// requests a second that the API server gets from here at most, and at once. The client's own bound of 5 would let
	// requests wait for each other.
	requestsPerSecond, requestsAtOnce = 200, 400
)

// Labels and annotations of records and sessions.
const (
	labelRecord   = "tandem.dev/record"  // value: what begins the key, hashed
	labelMortal   = "tandem.dev/mortal"  // it goes away by itself
	labelOwner    = "tandem.dev/session" // the session with which it goes
	labelSession  = "tandem.dev/lease"   // of sessions
	noteKey       = "tandem.dev/key"
	noteExpires   = "tandem.dev/expires"
	noteWrite     = "tandem.dev/write" // differs with every write: equal contents would leave the version as it was
	secretType    = "tandem.dev/record"
	recordPrefix  = "tandem-record-"
	sessionPrefix = "tandem-session-"
	yes           = "true"
)

// Config says where records are.
type Config struct {
	// Namespace, "" = that of the pod in which the process runs.
	Namespace string
	// API server and credentials; nil = those of the pod.
	API    *rest.Config
	Logger *zap.Logger
	// Sweep is the pause between two looks for records whose time is over; 0 = default.
	Sweep time.Duration
}

// Store is a store in Kubernetes.
type Store struct {
	secrets core.SecretInterface
	leases  coordination.LeaseInterface
	raw     rest.Interface // of secrets, for lists without values
	ns      string
	log     *zap.Logger
	sweep   time.Duration
	http    interface{ CloseIdleConnections() }

	ctx   context.Context // ends with the store
	stop  context.CancelFunc
	tasks sync.WaitGroup
}

// errClosed is what calls of a closed store return.
var errClosed = errors.New("the store is closed")

// Open connects to the API server, and fails when it does not answer or refuses.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.Sweep <= 0 {
		cfg.Sweep = defaultSweep
	}
	api, ns, err := place(cfg)
	if err != nil {
		return nil, err
	}
	api.QPS, api.Burst = requestsPerSecond, requestsAtOnce
	client, err := rest.HTTPClientFor(api)
	if err != nil {
		return nil, err
	}
	secrets, err := core.NewForConfigAndClient(api, client)
	if err != nil {
		return nil, err
	}
	leases, err := coordination.NewForConfigAndClient(api, client)
	if err != nil {
		return nil, err
	}
	s := &Store{secrets: secrets.Secrets(ns), leases: leases.Leases(ns), raw: secrets.RESTClient(), ns: ns,
		log: cfg.Logger, sweep: cfg.Sweep, http: client}
	s.ctx, s.stop = context.WithCancel(context.Background())
	// Both rights are tried: who lacks one should learn it now.
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	_, err = s.secrets.List(ctx, metav1.ListOptions{Limit: 1, LabelSelector: labelMortal + "=" + yes})
	if err == nil {
		_, err = s.leases.List(ctx, metav1.ListOptions{Limit: 1, LabelSelector: labelSession + "=" + yes})
	}
	if err != nil {
		s.stop()
		client.CloseIdleConnections()
		return nil, fmt.Errorf("kubernetes, namespace %s: %w", ns, err)
	}
	s.tasks.Go(s.tidy)
	return s, nil
}

// namespaceFile is where a pod finds its namespace.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// place returns the API server and the namespace.
func place(cfg Config) (*rest.Config, string, error) {
	api, ns := cfg.API, cfg.Namespace
	if api == nil {
		var err error
		if api, err = rest.InClusterConfig(); err != nil {
			return nil, "", fmt.Errorf("kubernetes: %w", err)
		}
	}
	if ns == "" {
		text, err := os.ReadFile(namespaceFile)
		if err != nil {
			return nil, "", fmt.Errorf("kubernetes: no namespace is given, and the pod's is not known: %w", err)
		}
		ns = strings.TrimSpace(string(text))
	}
	return rest.CopyConfig(api), ns, nil
}

// MaxValue implements shared.Store.
func (s *Store) MaxValue() int { return maxValue }

// Close implements shared.Store.
func (s *Store) Close() error {
	s.stop()
	s.tasks.Wait()
	s.http.CloseIdleConnections()
	return nil
}

// call is the context of a call, which ends with the store too.
func (s *Store) call(ctx context.Context) (context.Context, func(), error) {
	if s.ctx.Err() != nil {
		return nil, nil, errClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }, nil
}

// failure is an error of the client in the words of package shared.
func failure(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err):
		return shared.ErrNotFound
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return shared.ErrConflict
	case ctx.Err() != nil:
		return errors.Join(ctx.Err(), err)
	}
	return err
}

// nameOf is the name of the Secret of a key, which may have letters that names cannot have.
func nameOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return recordPrefix + hex.EncodeToString(sum[:20])
}

// groupOf is what begins a key, up to its first slash, as a label can have it; ok is false for a prefix that ends
// before one.
func groupOf(prefix string) (label string, ok bool) {
	group, _, ok := strings.Cut(prefix, "/")
	sum := sha256.Sum256([]byte(group))
	return hex.EncodeToString(sum[:8]), ok
}

// selector is that of the records with a prefix, and of more where the prefix is short.
func selector(prefix string) string {
	if group, ok := groupOf(prefix); ok {
		return labelRecord + "=" + group
	}
	return labelRecord
}

// expired reports whether a record's time to live is over.
func expired(notes map[string]string, now time.Time) bool {
	at, err := time.Parse(time.RFC3339Nano, notes[noteExpires])
	return err == nil && now.After(at)
}

// record reads a Secret.
func record(o *corev1.Secret) (shared.Record, error) {
	value, err := unpack(o.Data)
	if err != nil {
		return shared.Record{}, fmt.Errorf("secret %s: %w", o.Name, err)
	}
	return shared.Record{Key: o.Annotations[noteKey], Value: value, Version: shared.Version(o.ResourceVersion)}, nil
}

// secret is the Secret of a record.
func (s *Store) secret(key string, value []byte, life shared.Life) (*corev1.Secret, error) {
	if err := shared.CheckWrite(s, key, value, life); err != nil {
		return nil, err
	}
	data, err := pack(value)
	if err != nil {
		return nil, err
	}
	group, _ := groupOf(key)
	o := &corev1.Secret{Type: secretType, Data: data, ObjectMeta: metav1.ObjectMeta{
		Name: nameOf(key), Namespace: s.ns, Labels: map[string]string{labelRecord: group},
		Annotations: map[string]string{noteKey: key, noteWrite: rand.Text()},
	}}
	if life.TTL > 0 {
		o.Labels[labelMortal] = yes
		o.Annotations[noteExpires] = time.Now().Add(life.TTL).UTC().Format(time.RFC3339Nano)
	}
	if life.Session != nil {
		n, ok := life.Session.(*session)
		if !ok {
			return nil, fmt.Errorf("%s: life: the session is of another store", key)
		}
		select {
		case <-n.done:
			return nil, fmt.Errorf("%s: life: the session has ended", key)
		default:
		}
		o.Labels[labelMortal], o.Labels[labelOwner] = yes, n.name
	}
	return o, nil
}

// Get implements shared.Store.
func (s *Store) Get(ctx context.Context, key string) (shared.Record, error) {
	ctx, end, err := s.call(ctx)
	if err != nil {
		return shared.Record{}, err
	}
	defer end()
	o, err := s.secrets.Get(ctx, nameOf(key), metav1.GetOptions{})
	if err != nil {
		return shared.Record{}, failure(ctx, err)
	}
	if expired(o.Annotations, time.Now()) {
		return shared.Record{}, shared.ErrNotFound
	}
	return record(o)
}

// List implements shared.Store.
func (s *Store) List(ctx context.Context, prefix string) ([]shared.Record, error) {
	ctx, end, err := s.call(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	list, _, err := s.list(ctx, prefix)
	return list, err
}

// list returns the records of a prefix, and the version of the list.
func (s *Store) list(ctx context.Context, prefix string) (list []shared.Record, version string, err error) {
	options := metav1.ListOptions{LabelSelector: selector(prefix), Limit: pageSize}
	now := time.Now()
	for {
		page, err := s.secrets.List(ctx, options)
		if err != nil {
			return nil, "", failure(ctx, err)
		}
		for i := range page.Items {
			o := &page.Items[i]
			if !strings.HasPrefix(o.Annotations[noteKey], prefix) || expired(o.Annotations, now) {
				continue
			}
			r, err := record(o)
			if err != nil {
				return nil, "", err
			}
			list = append(list, r)
		}
		// All pages are of one version.
		version = page.ResourceVersion
		if options.Continue = page.Continue; options.Continue == "" {
			slices.SortFunc(list, func(a, b shared.Record) int { return strings.Compare(a.Key, b.Key) })
			return list, version, nil
		}
	}
}

// Create implements shared.Store.
func (s *Store) Create(ctx context.Context, key string, value []byte, life shared.Life) (shared.Version, error) {
	ctx, end, err := s.call(ctx)
	if err != nil {
		return "", err
	}
	defer end()
	o, err := s.secret(key, value, life)
	if err != nil {
		return "", err
	}
	made, err := s.secrets.Create(ctx, o, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) && s.bury(ctx, o.Name) {
		made, err = s.secrets.Create(ctx, o, metav1.CreateOptions{})
	}
	if err != nil {
		return "", failure(ctx, err)
	}
	return shared.Version(made.ResourceVersion), nil
}

// bury removes a record whose time to live is over; false: it is another one, or could not be removed.
func (s *Store) bury(ctx context.Context, name string) bool {
	o, err := s.secrets.Get(ctx, name, metav1.GetOptions{})
	return err == nil && expired(o.Annotations, time.Now()) && s.remove(ctx, name, o.ResourceVersion) == nil
}

// remove deletes a Secret that still has a version.
func (s *Store) remove(ctx context.Context, name, version string) error {
	return s.secrets.Delete(ctx, name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
}

// Update implements shared.Store.
func (s *Store) Update(ctx context.Context, key string, value []byte, was shared.Version, life shared.Life) (
	shared.Version, error,
) {
	ctx, end, err := s.call(ctx)
	if err != nil {
		return "", err
	}
	defer end()
	o, err := s.secret(key, value, life)
	if err != nil {
		return "", err
	}
	if was == shared.AnyVersion {
		return "", fmt.Errorf("%s: %w: no version is given", key, shared.ErrConflict)
	}
	o.ResourceVersion = string(was)
	made, err := s.secrets.Update(ctx, o, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return "", shared.ErrConflict
	}
	if err != nil {
		return "", failure(ctx, err)
	}
	return shared.Version(made.ResourceVersion), nil
}

// Put implements shared.Store.
func (s *Store) Put(ctx context.Context, key string, value []byte, life shared.Life) (shared.Version, error) {
	ctx, end, err := s.call(ctx)
	if err != nil {
		return "", err
	}
	defer end()
	o, err := s.secret(key, value, life)
	if err != nil {
		return "", err
	}
	for {
		// Without a version an update replaces whatever there is.
		made, err := s.secrets.Update(ctx, o, metav1.UpdateOptions{})
		if apierrors.IsNotFound(err) {
			made, err = s.secrets.Create(ctx, o, metav1.CreateOptions{})
		}
		switch {
		case err == nil:
			return shared.Version(made.ResourceVersion), nil
		case !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) || ctx.Err() != nil:
			return "", failure(ctx, err)
		}
	}
}

// Delete implements shared.Store.
func (s *Store) Delete(ctx context.Context, key string, was shared.Version) error {
	ctx, end, err := s.call(ctx)
	if err != nil {
		return err
	}
	defer end()
	if was != shared.AnyVersion {
		err := s.remove(ctx, nameOf(key), string(was))
		if apierrors.IsNotFound(err) {
			return shared.ErrConflict
		}
		return failure(ctx, err)
	}
	if err := s.secrets.Delete(ctx, nameOf(key), metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		return failure(ctx, err)
	}
	return nil
}

// Watch implements shared.Store.
func (s *Store) Watch(ctx context.Context, prefix string) <-chan shared.Event {
	m := shared.NewMirror()
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	go func() {
		defer m.Close()
		defer cancel()
		defer stop()
		s.watch(ctx, prefix, m)
	}()
	return m.Events()
}
