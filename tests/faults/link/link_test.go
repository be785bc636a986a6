package link

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/testwait"
)

// joined returns both ends of a link in memory.
func joined(t *testing.T, l *Link) (client, server net.Conn) {
	t.Helper()
	client, a := net.Pipe()
	b, server := net.Pipe()
	ended := make(chan struct{})
	go func() {
		l.join(a, b)
		close(ended)
	}()
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
		<-ended
	})
	return client, server
}

// arrive reads n bytes and says how long they took.
func arrive(t *testing.T, c net.Conn, n int) (data []byte, took time.Duration) {
	t.Helper()
	start := time.Now()
	data = make([]byte, n)
	if _, err := io.ReadFull(c, data); err != nil {
		t.Fatal(err)
	}
	return data, time.Since(start)
}

func send(t *testing.T, c net.Conn, data []byte) {
	t.Helper()
	if _, err := c.Write(data); err != nil {
		t.Fatal(err)
	}
}

func TestDelayIsOfOneDirection(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		l := newLink(1)
		client, server := joined(t, l)
		l.Set(Disturbance{}, Disturbance{Delay: 200 * time.Millisecond})
		send(t, client, []byte("up"))
		if _, took := arrive(t, server, 2); took != 0 {
			t.Errorf("up took %v", took)
		}
		send(t, server, []byte("down"))
		if data, took := arrive(t, client, 4); took != 200*time.Millisecond || string(data) != "down" {
			t.Errorf("down took %v: %q", took, data)
		}
	})
}

func TestHeldBytesArriveLater(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		l := newLink(1)
		client, server := joined(t, l)
		l.Set(Disturbance{Hold: true}, Disturbance{})
		send(t, client, []byte("a"))
		send(t, client, []byte("b"))
		send(t, server, []byte("c"))
		if _, took := arrive(t, client, 1); took != 0 {
			t.Errorf("the other direction took %v", took)
		}
		time.AfterFunc(5*time.Second, func() { l.Set(Disturbance{}, Disturbance{}) })
		if data, took := arrive(t, server, 2); took != 5*time.Second || string(data) != "ab" {
			t.Errorf("held bytes took %v: %q", took, data)
		}
	})
}

func TestLossHoldsBackWhatFollows(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		l := newLink(1)
		client, server := joined(t, l)
		l.Set(Disturbance{Loss: 0.05}, Disturbance{})
		data := make([]byte, 100*segment)
		for i := range data {
			data[i] = byte(i / 7)
		}
		go func() { _, _ = client.Write(data) }()
		got, took := arrive(t, server, len(data))
		if !bytes.Equal(got, data) {
			t.Error("bytes changed")
		}
		// All segments are sent at once, so what was lost is sent again at once as well.
		if took != Retransmission {
			t.Errorf("100 segments, some of them lost, took %v", took)
		}
		l.Set(Disturbance{}, Disturbance{})
		send(t, client, data[:1])
		if _, took := arrive(t, server, 1); took != 0 {
			t.Errorf("without loss a byte took %v", took)
		}
	})
}

func TestOneEndLeaves(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		l := newLink(1)
		client, server := joined(t, l)
		l.Set(Disturbance{Hold: true}, Disturbance{})
		send(t, client, []byte("lost"))
		_ = client.Close()
		if n, err := server.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	})
}

// TestFullLinkEnds: a link on which both directions are held and full can be broken.
func TestFullLinkEnds(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		l := newLink(1)
		client, server := joined(t, l)
		l.Set(Disturbance{Hold: true, Loss: 1e-9}, Disturbance{Hold: true, Loss: 1e-9}) // cut into segments
		failed := make(chan error, 2)
		for _, c := range []net.Conn{client, server} {
			go func() {
				_, err := c.Write(make([]byte, 2*queued*segment))
				failed <- err
			}()
		}
		synctest.Wait()
		l.Cut()
		for range 2 {
			if <-failed == nil {
				t.Error("more than the queue holds was taken")
			}
		}
	})
}

// TestOverTCP: connections are passed on to a server, end when one side has sent all, and are broken by Cut.
func TestOverTCP(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	echoes := make(chan error, 2)
	go func() {
		for range 2 {
			c, err := server.Accept()
			if err != nil {
				echoes <- err
				continue
			}
			_, err = io.Copy(c, c)
			_ = c.Close()
			echoes <- err
		}
	}()
	t.Cleanup(func() { _ = server.Close() })
	l, err := Listen("127.0.0.1:0", server.Addr().String(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	dial := func() *net.TCPConn {
		c, err := net.Dial("tcp", l.Address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c.(*net.TCPConn)
	}
	whole := dial()
	send(t, whole, []byte("hello"))
	if err := whole.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(whole); err != nil || string(got) != "hello" {
		t.Errorf("%q, %v", got, err)
	}
	if err := testwait.For(t, echoes, "the first connection ends"); err != nil {
		t.Error(err)
	}
	broken := dial()
	send(t, broken, []byte("x"))
	arrive(t, broken, 1)
	l.Cut()
	if _, err := broken.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that was cut is open")
	}
	if err := testwait.For(t, echoes, "the server notices the cut"); err == nil {
		t.Error("the server saw an ordinary end")
	}
}
