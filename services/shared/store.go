package shared

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Store keeps records that all gateways of a cluster see. It is safe for concurrent use. Errors that are none of the
// ones below mean that the store cannot be reached, or refused the call: nothing is known of a write then.
type Store interface {
	// Get returns a record, ErrNotFound when there is none.
	Get(ctx context.Context, key string) (Record, error)
	// List returns the records whose keys begin with a prefix, ordered by key.
	List(ctx context.Context, prefix string) ([]Record, error)
	// Create writes a record that does not exist, else ErrConflict.
	Create(ctx context.Context, key string, value []byte, life Life) (Version, error)
	// Update replaces a record that still has a version; ErrConflict when it has another one or is gone.
	Update(ctx context.Context, key string, value []byte, was Version, life Life) (Version, error)
	// Put writes a record, whatever there was.
	Put(ctx context.Context, key string, value []byte, life Life) (Version, error)
	// Delete removes a record that still has a version, else ErrConflict; AnyVersion removes whatever there is, also
	// nothing.
	Delete(ctx context.Context, key string, was Version) error
	// Watch tells of the records whose keys begin with a prefix: those that there are, then one event Synced, then changes
	// as they come, until ctx ends or the store is closed; then the channel is closed. It goes on by itself after the
	// store was away, and then tells what changed meanwhile. Of several changes of a record some may be left out, never
	// the last one. Who does not read holds up this watch alone.
	Watch(ctx context.Context, prefix string) <-chan Event
	// NewSession begins a session that ends when the store has not heard of this process for ttl.
	NewSession(ctx context.Context, ttl time.Duration) (Session, error)
	// MaxValue is the largest value of a record in bytes.
	MaxValue() int
	// Close gives up the store. Sessions are not ended: to the others the process looks as if it had died.
	Close() error
}

// Errors of a Store.
var (
	ErrNotFound = errors.New("no such record")
	ErrConflict = errors.New("the record was changed by somebody else")
	ErrTooLarge = errors.New("the value is larger than the store takes")
)

// Version tells states of a record apart. It has no order.
type Version string

// AnyVersion fits every state of a record, also none.
const AnyVersion Version = ""

// Record is a value with its name.
type Record struct {
	Key     string
	Value   []byte // must not be changed
	Version Version
}

// Life says when a record goes away by itself; zero = never. At most one member is set.
type Life struct {
	// TTL is how long it stays at least; it goes within another minute.
	TTL time.Duration
	// Session is the one with which it goes.
	Session Session
}

// Session is the sign of life of a process.
type Session interface {
	// Done is closed when the session has ended: its records are gone, or go in a moment.
	Done() <-chan struct{}
	// Close ends the session and removes its records.
	Close(ctx context.Context) error
}

// EventKind says what an Event tells.
type EventKind uint8

// The kinds of an Event.
const (
	// Written: the record is new or changed.
	Written EventKind = iota
	// Deleted: the record is gone; only its key is told.
	Deleted
	// Synced: all records that there were when the watch began have been told.
	Synced
)

// Event is what a watch tells.
type Event struct {
	Kind   EventKind
	Record Record
}

// maxKey bounds a key, for stores that make names of them.
const maxKey = 160

// CheckKey says why a key cannot be used: keys are letters, digits and any of "/._-".
func CheckKey(key string) error {
	if key == "" || len(key) > maxKey {
		return fmt.Errorf("key %q: must have 1 to %d bytes", key, maxKey)
	}
	if i := strings.IndexFunc(key, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-", r))
	}); i >= 0 {
		return fmt.Errorf("key %q: may have letters, digits and any of /._- only", key)
	}
	return nil
}

// CheckWrite says why a driver cannot write a record.
func CheckWrite(s Store, key string, value []byte, life Life) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	if len(value) > s.MaxValue() {
		return fmt.Errorf("%s: %w: %d bytes, at most %d", key, ErrTooLarge, len(value), s.MaxValue())
	}
	if life.TTL < 0 || life.TTL > 0 && life.Session != nil {
		return fmt.Errorf("%s: life: must be a TTL or a session", key)
	}
	return nil
}
