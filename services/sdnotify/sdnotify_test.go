package sdnotify

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-inference/tandem/services/testwait"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listen plays the service manager.
func listen(t *testing.T, address string) <-chan string {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	messages := make(chan string, 1000)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 1000)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			messages <- string(buffer[:n])
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-ended
	})
	t.Setenv(SocketVariable, address)
	return messages
}

// TestPings: a service that is alive says so within its limit, one that is not says nothing.
func TestPings(t *testing.T) {
	for name, address := range map[string]string{"path": filepath.Join(t.TempDir(), "s"),
		"abstract": "@tandem-sdnotify-test-" + strconv.Itoa(os.Getpid())} {
		t.Run(name, func(t *testing.T) {
			messages := listen(t, address)
			t.Setenv(watchdogVariable, "40000")
			t.Setenv(watchdogPIDVariable, strconv.Itoa(os.Getpid()))
			n, err := FromEnvironment()
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			n.Send(Ready)
			if m := testwait.For(t, messages, "a message"); m != Ready {
				t.Fatalf("got %q", m)
			}
			ctx, cancel := context.WithCancel(t.Context())
			dead := make(chan struct{})
			asked := 0
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				n.Watch(ctx, func(context.Context) error {
					if asked++; asked <= 3 {
						return nil
					}
					if asked == 10 {
						close(dead)
					}
					return errors.New("stuck")
				})
			}()
			<-dead
			cancel()
			<-ended
			n.Send(Stopping) // behind everything that was sent before
			var got []string
			for got = []string{}; !slices.Contains(got, Stopping); {
				got = append(got, testwait.For(t, messages, "a message"))
			}
			if want := []string{Alive, Alive, Alive, Stopping}; !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// TestNobodyWatches: without the variables nothing is sent and nothing asked; with those of another process neither.
func TestNobodyWatches(t *testing.T) {
	never := func(context.Context) error { t.Error("asked"); return nil }
	t.Setenv(SocketVariable, "")
	n, err := FromEnvironment()
	if n != nil || err != nil {
		t.Fatalf("%v, %v", n, err)
	}
	n.Send(Ready)
	n.Watch(t.Context(), never)
	n.Close()

	listen(t, filepath.Join(t.TempDir(), "s"))
	t.Setenv(watchdogVariable, "1000000")
	t.Setenv(watchdogPIDVariable, "1")
	if n, err = FromEnvironment(); err != nil {
		t.Fatal(err)
	}
	n.Watch(t.Context(), never)
	n.Close()
	t.Setenv(watchdogPIDVariable, "")
	for _, text := range []string{"soon", "0", "-5"} {
		t.Setenv(watchdogVariable, text)
		if _, err := FromEnvironment(); err == nil || !strings.Contains(err.Error(), watchdogVariable) {
			t.Errorf("%s: %v", text, err)
		}
	}
	t.Setenv(SocketVariable, filepath.Join(t.TempDir(), "none"))
	if _, err := FromEnvironment(); err == nil || !strings.Contains(err.Error(), SocketVariable) {
		t.Errorf("no socket: %v", err)
	}
}

// TestReceiver: what a child says reaches the parent, and through it the parent's own parent.
func TestReceiver(t *testing.T) {
	outside := listen(t, filepath.Join(t.TempDir(), "s"))
	outer, err := FromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	defer outer.Close()
	dir := t.TempDir()
	r, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(outer)
	}()
	defer func() {
		r.Close()
		<-ended
	}()
	env := append(Without([]string{"A=1", SocketVariable + "=/x", watchdogVariable + "=9", watchdogPIDVariable + "=1"}),
		r.Environment(2*time.Second)...)
	want := []string{"A=1", SocketVariable + "=" + filepath.Join(dir, "notify.sock"), watchdogVariable + "=2000000"}
	if !slices.Equal(env, want) {
		t.Errorf("environment %q, want %q", env, want)
	}
	if env := r.Environment(0); len(env) != 1 {
		t.Errorf("environment without a limit: %q", env)
	}
	t.Setenv(SocketVariable, filepath.Join(dir, "notify.sock"))
	child, err := FromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	defer child.Close()
	if r.Serving(t.Context()) == nil {
		t.Error("serves before it said so")
	}
	child.Send(Ready + "\n" + Serving + "\n" + Alive)
	for _, want := range []string{Ready, Serving, Alive} {
		if m := testwait.For(t, outside, "a message"); m != want {
			t.Errorf("passed on %q, want %q", m, want)
		}
	}
	if err := r.Alive(t.Context()); err != nil {
		t.Error(err)
	}
	if err := r.Serving(t.Context()); err != nil {
		t.Error(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if r.Alive(short) == nil {
		t.Error("one message counts twice")
	}
	child.Send(Alive)
	if m := testwait.For(t, outside, "a message"); m != Alive {
		t.Errorf("passed on %q", m)
	}
	r.Restarted()
	gone, cancel2 := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel2()
	if r.Alive(gone) == nil || r.Serving(t.Context()) == nil {
		t.Error("a new process has what the one before it said")
	}
}
