package kubestore

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/tandem-inference/tandem/services/pause"
	"github.com/tandem-inference/tandem/services/shared"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// rewatch is the pause before a watch that failed begins again.
const rewatch = 200 * time.Millisecond

// watch tells a mirror of a prefix until ctx ends.
func (s *Store) watch(ctx context.Context, prefix string, m *shared.Mirror) {
	for ctx.Err() == nil {
		if err := s.follow(ctx, prefix, m); err != nil && ctx.Err() == nil {
			s.log.Debug("a watch begins again", zap.String("prefix", prefix), zap.Error(err))
			pause.For(ctx, rewatch)
		}
	}
}

// follow tells a full list and the changes after it until something fails. The API server ends watches now and then,
// and does not know old versions: both begin again with a list.
func (s *Store) follow(ctx context.Context, prefix string, m *shared.Mirror) error {
	list, version, err := s.list(ctx, prefix)
	if err != nil {
		return err
	}
	if !m.Reset(ctx, list) {
		return ctx.Err()
	}
	w, err := s.secrets.Watch(ctx, metav1.ListOptions{LabelSelector: selector(prefix), ResourceVersion: version,
		AllowWatchBookmarks: true})
	if err != nil {
		return failure(ctx, err)
	}
	defer w.Stop()
	for {
		select {
		case e, more := <-w.ResultChan():
			if !more {
				return errors.New("the watch has ended")
			}
			if err := s.tell(ctx, prefix, e, m); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tell tells a mirror of one event.
func (s *Store) tell(ctx context.Context, prefix string, e watch.Event, m *shared.Mirror) error {
	if e.Type == watch.Error {
		return apierrors.FromObject(e.Object)
	}
	o, ok := e.Object.(*corev1.Secret)
	if !ok || e.Type == watch.Bookmark || !strings.HasPrefix(o.Annotations[noteKey], prefix) {
		return nil
	}
	told := shared.Event{Kind: shared.Deleted, Record: shared.Record{Key: o.Annotations[noteKey]}}
	if e.Type != watch.Deleted && !expired(o.Annotations, time.Now()) {
		r, err := record(o)
		if err != nil {
			return err
		}
		told = shared.Event{Kind: shared.Written, Record: r}
	}
	if !m.Apply(ctx, told) {
		return ctx.Err()
	}
	return nil
}
