package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/gateway/internal/openai"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server whose stall time is short and that has two routes for tests.
func serve(t *testing.T, stall time.Duration, flood chan<- error) string {
	t.Helper()
	s := New(Config{Stall: stall}, Deps{OpenAI: openai.New(openai.Config{}, openai.Deps{}), Cluster: cluster.New(cluster.Config{}, cluster.Deps{})})
	s.add("POST", "/echo", accessKey, false, func(w http.ResponseWriter, r *http.Request) error {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	})
	s.add("GET", "/flood", accessKey, false, func(w http.ResponseWriter, _ *http.Request) error {
		chunk := bytes.Repeat([]byte("x"), 1<<20)
		for {
			if _, err := w.Write(chunk); err != nil {
				flood <- err
				return err
			}
		}
	})
	s.add("GET", "/panic", accessKey, false, func(http.ResponseWriter, *http.Request) error { panic("bug") })
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Server{Handler: s, ReadHeaderTimeout: stall, IdleTimeout: stall, ConnContext: ConnContext}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.Serve(Listener(lis))
	}()
	t.Cleanup(func() {
		_ = h.Shutdown(context.Background())
		<-done
	})
	return lis.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestStalledRequests(t *testing.T) {
	addr := serve(t, 50*time.Millisecond, nil)
	for name, send := range map[string]string{
		"in the headers": "POST /echo HTTP/1.1\r\nHost: x\r\nContent-",
		"in the body":    "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf",
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, addr)
			io.WriteString(c, send)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != 408 || !bytes.Contains(b, []byte("request_timeout")) || !resp.Close {
				t.Errorf("%d %s, close %v", resp.StatusCode, b, resp.Close)
			}
		})
	}
}

// A connection that idles between requests is not told anything, and one that works for long is not disturbed.
func TestIdleConnectionIsLeftAlone(t *testing.T) {
	addr := serve(t, 50*time.Millisecond, nil)
	c := dial(t, addr)
	br := bufio.NewReader(c)
	io.WriteString(c, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(resp.Body); string(b) != "hi" {
		t.Fatalf("echo %q", b)
	}
	if b, err := io.ReadAll(br); len(b) != 0 || err != nil {
		t.Errorf("idle connection got %q, %v", b, err)
	}
}

func TestSlowReaderIsGivenUp(t *testing.T) {
	flood := make(chan error, 1)
	addr := serve(t, 100*time.Millisecond, flood)
	c := dial(t, addr)
	io.WriteString(c, "GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
	select {
	case <-flood:
	case <-time.After(10 * time.Second):
		t.Fatal("the handler still writes to a client that does not read")
	}
}

func TestPanicIsAnAnswer(t *testing.T) {
	addr := serve(t, time.Second, nil)
	resp, err := http.Get("http://" + addr + "/panic")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	b, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 500 || !bytes.Contains(b, []byte("internal_error")) {
		t.Errorf("%d %s", resp.StatusCode, b)
	}
}
