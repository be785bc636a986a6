// Package sdnotify implements both ends of systemd's notification protocol, sd_notify(3): a service reports that it is
// up and then, regularly, that it is alive. The process that started it kills and replaces it when these messages stop.
package sdnotify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Variables of the protocol, which the one who starts a service sets.
const (
	SocketVariable      = "NOTIFY_SOCKET"
	watchdogVariable    = "WATCHDOG_USEC"
	watchdogPIDVariable = "WATCHDOG_PID"
)

// Messages of the protocol.
const (
	Ready    = "READY=1"
	Alive    = "WATCHDOG=1"
	Stopping = "STOPPING=1"
	// Serving and Loading are statuses, which "systemctl status" shows.
	Serving = "STATUS=serving"
	Loading = "STATUS=not serving: loading the model, or waiting for the engine"
)

// pingsPerLimit is how many times an alive service says so within the time after which it would be killed.
const pingsPerLimit = 4

// Notifier sends messages to whoever started this process. A nil Notifier sends nothing.
type Notifier struct {
	conn net.Conn
	// limit after which a silent service is killed; 0 = nobody watches.
	limit time.Duration
}

// FromEnvironment returns the notifier that the environment asks for, nil when it asks for none.
func FromEnvironment() (*Notifier, error) {
	address := os.Getenv(SocketVariable)
	if address == "" {
		return nil, nil
	}
	conn, err := net.Dial("unixgram", address) // an address that begins with @ is abstract, for net as for systemd
	if err != nil {
		return nil, fmt.Errorf("%s: %w", SocketVariable, err)
	}
	n := &Notifier{conn: conn}
	// The variables may have been inherited from a parent, which is watched itself.
	if pid := os.Getenv(watchdogPIDVariable); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return n, nil
	}
	text := os.Getenv(watchdogVariable)
	if text == "" {
		return n, nil
	}
	us, err := strconv.ParseInt(text, 10, 64)
	if err != nil || us <= 0 {
		_ = conn.Close()
		return nil, fmt.Errorf("%s: %q is no count of microseconds", watchdogVariable, text)
	}
	n.limit = time.Duration(us) * time.Microsecond
	return n, nil
}

// Send sends one message. Losing one is no fault of the service: whoever reads them is about to start it again.
func (n *Notifier) Send(message string) {
	if n != nil {
		_, _ = n.conn.Write([]byte(message))
	}
}

// Watch asks alive again and again until ctx ends, and sends Alive each time that it returns nil. Without a watchdog it
// asks nothing.
func (n *Notifier) Watch(ctx context.Context, alive func(context.Context) error) {
	if n == nil || n.limit == 0 {
		return
	}
	ticker := time.NewTicker(n.limit / pingsPerLimit)
	defer ticker.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, n.limit/2)
		err := alive(attempt)
		cancel()
		if err == nil {
			n.Send(Alive)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// Close closes the connection.
func (n *Notifier) Close() {
	if n != nil {
		_ = n.conn.Close()
	}
}

// Receiver reads the messages of a service that this process starts.
type Receiver struct {
	conn  *net.UnixConn
	alive chan struct{} // holds a message Alive that nobody has taken yet

	mu      sync.Mutex // guards serving
	serving bool
}

// Listen opens the socket of a service in the folder dir.
func Listen(dir string) (*Receiver, error) {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify.sock"), Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	return &Receiver{conn: conn, alive: make(chan struct{}, 1)}, nil
}

// Environment is what the service needs besides its own variables: where to send, and how long it may be silent,
// 0 = for ever. Earlier values of the variables must not be in its environment.
func (r *Receiver) Environment(limit time.Duration) []string {
	env := []string{SocketVariable + "=" + r.conn.LocalAddr().String()}
	if limit > 0 {
		env = append(env, watchdogVariable+"="+strconv.FormatInt(limit.Microseconds(), 10))
	}
	return env
}

// Without returns env without the variables of the protocol: they are for this process alone.
func Without(env []string) []string {
	var kept []string
	for _, variable := range env {
		name, _, _ := strings.Cut(variable, "=")
		if name != SocketVariable && name != watchdogVariable && name != watchdogPIDVariable {
			kept = append(kept, variable)
		}
	}
	return kept
}

// Run reads until Close, and sends every message on to n.
func (r *Receiver) Run(n *Notifier) {
	buffer := make([]byte, 4096)
	for {
		count, err := r.conn.Read(buffer)
		if err != nil {
			return
		}
		for message := range strings.Lines(string(buffer[:count])) {
			message = strings.TrimSuffix(message, "\n")
			switch message {
			case Alive:
				select {
				case r.alive <- struct{}{}:
				default:
				}
			case Serving, Loading:
				r.mu.Lock()
				r.serving = message == Serving
				r.mu.Unlock()
			}
			n.Send(message)
		}
	}
}

// Alive returns nil when the service says that it is alive.
func (r *Receiver) Alive(ctx context.Context) error {
	select {
	case <-r.alive:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Serving returns nil when the last status is that the service serves.
func (r *Receiver) Serving(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.serving {
		return errors.New("the service does not serve yet")
	}
	return nil
}

// Restarted forgets what an earlier process of the service said.
func (r *Receiver) Restarted() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.serving = false
	select {
	case <-r.alive:
	default:
	}
}

// Close ends Run.
func (r *Receiver) Close() { _ = r.conn.Close() }
