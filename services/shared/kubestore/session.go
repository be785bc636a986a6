package kubestore

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"math"
	"os"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/shared"
	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// session is a Lease that is renewed.
type session struct {
	store *Store
	name  string
	ttl   time.Duration
	stop  context.CancelFunc
	done  chan struct{}
}

// NewSession implements shared.Store.
func (s *Store) NewSession(ctx context.Context, ttl time.Duration) (shared.Session, error) {
	ctx, end, err := s.call(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	host, _ := os.Hostname() // for people who look
	seconds, now := int32(math.Ceil(max(ttl, time.Second).Seconds())), metav1.NowMicro()
	n := &session{store: s, name: sessionPrefix + strings.ToLower(rand.Text()),
		ttl: time.Duration(seconds) * time.Second, done: make(chan struct{})}
	lease, err := s.leases.Create(ctx, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Namespace: s.ns, Labels: map[string]string{labelSession: yes}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &host, LeaseDurationSeconds: &seconds, AcquireTime: &now,
			RenewTime: &now},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, failure(ctx, err)
	}
	alive, stop := context.WithCancel(s.ctx)
	n.stop = stop
	s.tasks.Go(func() {
		defer close(n.done)
		defer stop()
		n.renew(alive, lease)
	})
	return n, nil
}

// renew keeps the session until ctx ends, the Lease is gone, or it could not be renewed for its whole length: the
// others have removed it then, or will.
func (n *session) renew(ctx context.Context, lease *coordinationv1.Lease) {
	last := time.Now()
	for pause.For(ctx, n.ttl/4) {
		asked := time.Now()
		now := metav1.NewMicroTime(asked)
		lease.Spec.RenewTime = &now
		attempt, cancel := context.WithTimeout(ctx, n.ttl/4)
		next, err := n.store.leases.Update(attempt, lease, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) { // an answer was lost, or somebody has looked after it
			next, err = n.store.leases.Get(attempt, n.name, metav1.GetOptions{})
		} else if err == nil {
			last = asked
		}
		cancel()
		switch {
		case err == nil:
			lease = next
		case apierrors.IsNotFound(err):
			n.store.log.Warn("the session was ended by others", zap.String("session", n.name))
			return
		}
		if time.Since(last) >= n.ttl {
			n.store.log.Warn("the session could not be renewed", zap.String("session", n.name), zap.Error(err))
			return
		}
	}
}

// Done implements shared.Session.
func (n *session) Done() <-chan struct{} { return n.done }

// Close implements shared.Session.
func (n *session) Close(ctx context.Context) error {
	n.stop()
	<-n.done
	ctx, end, err := n.store.call(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := n.store.leases.Delete(ctx, n.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return failure(ctx, err)
	}
	return n.store.clear(ctx, func(labels, _ map[string]string) bool { return labels[labelOwner] == n.name })
}

// seen is when a Lease was first seen in its present state, by the clock that this process has.
type seen struct {
	version string
	at      time.Time
}

// tidy removes what nobody keeps alive any more, until the store is closed. All stores of a cluster do so; whoever
// comes second finds nothing.
func (s *Store) tidy() {
	sessions, swept := map[string]seen{}, time.Now()
	for pause.For(s.ctx, min(s.sweep, mostLook)) {
		ended, err := s.endSessions(sessions)
		if err == nil && (ended || time.Since(swept) >= s.sweep) {
			swept = time.Now()
			err = s.sweepRecords()
		}
		if err != nil && s.ctx.Err() == nil {
			s.log.Debug("records were not tidied, will try again", zap.Error(err))
		}
	}
}

// endSessions removes Leases that nobody renewed for their whole length while this process looked on.
func (s *Store) endSessions(sessions map[string]seen) (ended bool, err error) {
	list, err := s.leases.List(s.ctx, metav1.ListOptions{LabelSelector: labelSession + "=" + yes})
	if err != nil {
		return false, err
	}
	now, there := time.Now(), map[string]bool{}
	for i := range list.Items {
		lease := &list.Items[i]
		there[lease.Name] = true
		was := sessions[lease.Name]
		if was.version != lease.ResourceVersion {
			sessions[lease.Name] = seen{lease.ResourceVersion, now}
			continue
		}
		if lease.Spec.LeaseDurationSeconds == nil ||
			now.Sub(was.at) < time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second {
			continue
		}
		err := s.leases.Delete(s.ctx, lease.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{ResourceVersion: &lease.ResourceVersion}})
		switch {
		case err == nil, apierrors.IsNotFound(err):
			ended = true
		case !apierrors.IsConflict(err): // else it was renewed after all
			return ended, err
		}
	}
	for name := range sessions {
		if !there[name] {
			delete(sessions, name)
			ended = true // by its own process, or another store: its records may still be there
		}
	}
	return ended, nil
}

// sweepRecords removes records whose time to live is over or whose session has ended.
func (s *Store) sweepRecords() error {
	// Records first: a session is older than its records, so that one that is missing afterwards has ended.
	mortal, err := s.mortal(s.ctx)
	if err != nil || len(mortal) == 0 {
		return err
	}
	list, err := s.leases.List(s.ctx, metav1.ListOptions{LabelSelector: labelSession + "=" + yes})
	if err != nil {
		return err
	}
	alive := map[string]bool{}
	for i := range list.Items {
		alive[list.Items[i].Name] = true
	}
	now := time.Now()
	return s.removeAll(s.ctx, mortal, func(labels, notes map[string]string) bool {
		return expired(notes, now) || labels[labelOwner] != "" && !alive[labels[labelOwner]]
	})
}

// clear removes the mortal records that over returns true for.
func (s *Store) clear(ctx context.Context, over func(labels, notes map[string]string) bool) error {
	list, err := s.mortal(ctx)
	if err != nil {
		return err
	}
	return s.removeAll(ctx, list, over)
}

// removeAll removes those of a list that over returns true for, and that were not written since.
func (s *Store) removeAll(ctx context.Context, list []metav1.PartialObjectMetadata,
	over func(labels, notes map[string]string) bool) error {
	for i := range list {
		o := &list[i]
		if !over(o.Labels, o.Annotations) {
			continue
		}
		err := s.remove(ctx, o.Name, o.ResourceVersion)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return failure(ctx, err)
		}
	}
	return nil
}

// metadataOnly asks for a list without values.
const metadataOnly = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// mortal lists the records that go away by themselves, without their values.
func (s *Store) mortal(ctx context.Context) ([]metav1.PartialObjectMetadata, error) {
	options := metav1.ListOptions{LabelSelector: labelMortal + "=" + yes, Limit: 8 * pageSize}
	var list []metav1.PartialObjectMetadata
	for {
		body, err := s.raw.Get().Namespace(s.ns).Resource("secrets").SetHeader("Accept", metadataOnly).
			VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Raw()
		if err != nil {
			return nil, failure(ctx, err)
		}
		var page metav1.PartialObjectMetadataList
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, err
		}
		list = append(list, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return list, nil
		}
	}
}
