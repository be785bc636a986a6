package httpapi

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/gateway/internal/anthropic"
	"github.com/tandem-inference/tandem/gateway/internal/cluster"
	"github.com/tandem-inference/tandem/gateway/internal/openai"
	"github.com/tandem-inference/tandem/gateway/internal/responses"
	"github.com/tandem-inference/tandem/services/racetest"
	"github.com/tandem-inference/tandem/services/testwait"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server of loopback with a few routes for tests and returns its address.
func serve(t *testing.T, stall time.Duration, flood chan<- error) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, lis, stall, flood)
	return lis.Addr().String()
}

// serveOn is serve behind a listener of the caller's.
func serveOn(t *testing.T, lis net.Listener, stall time.Duration, flood chan<- error) {
	t.Helper()
	c := cluster.New(cluster.Config{}, cluster.Deps{})
	s, err := New(Config{Stall: stall}, Deps{
		OpenAI:    openai.New(openai.Config{}, openai.Deps{}),
		Responses: responses.New(responses.Config{}, responses.Deps{}),
		Anthropic: anthropic.New(anthropic.Config{}, anthropic.Deps{}), Cluster: c, Targets: c.Targets,
	})
	if err != nil {
		t.Fatal(err)
	}
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
	s.add("GET", "/wait", accessKey, false, func(_ http.ResponseWriter, r *http.Request) error {
		<-r.Context().Done()
		return r.Context().Err()
	})
	s.add("GET", "/panic", accessKey, false, func(http.ResponseWriter, *http.Request) error { panic("bug") })
	h := &http.Server{Handler: s, MaxHeaderBytes: ReadHeaderBytes, ReadHeaderTimeout: stall, IdleTimeout: stall}
	Attend(h)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.Serve(Listener(lis))
	}()
	t.Cleanup(func() {
		_ = h.Shutdown(context.Background())
		testwait.For(t, done, "the server stops")
	})
}

// pipes is a listener in memory, for servers in virtual time. Its connections have no buffer.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
	once  sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), ended: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.ended) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }

// dial returns the client's end of a new connection.
func (p *pipes) dial(t *testing.T) net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	t.Cleanup(func() { client.Close() })
	return client
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

// TestStalledRequests runs in virtual time: on a busy machine, a client that has yet to begin would be late for a short
// stall time.
func TestStalledRequests(t *testing.T) {
	const stall = 50 * time.Millisecond
	for name, send := range map[string]string{
		"in the headers": "POST /echo HTTP/1.1\r\nHost: x\r\nContent-",
		"in the body":    "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf",
	} {
		t.Run(name, func(t *testing.T) {
			racetest.Bubble(t, func(t *testing.T) {
				lis := newPipes()
				serveOn(t, lis, stall, nil)
				c := lis.dial(t)
				io.WriteString(c, send)
				sent := time.Now()
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if took := time.Since(sent); took != stall {
					t.Errorf("answered after %v, want %v", took, stall)
				}
				b, _ := io.ReadAll(resp.Body)
				if resp.StatusCode != 408 || !bytes.Contains(b, []byte("request_timeout")) || !resp.Close {
					t.Errorf("%d %s, close %v", resp.StatusCode, b, resp.Close)
				}
			})
		})
	}
}

// TestIdleConnectionIsLeftAlone: a connection that idles between requests is not told anything. It runs in virtual
// time, as TestStalledRequests does.
func TestIdleConnectionIsLeftAlone(t *testing.T) {
	racetest.Bubble(t, func(t *testing.T) {
		lis := newPipes()
		serveOn(t, lis, 50*time.Millisecond, nil)
		c := lis.dial(t)
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
	})
}

func TestSlowReaderIsGivenUp(t *testing.T) {
	flood := make(chan error, 1)
	addr := serve(t, 100*time.Millisecond, flood)
	c := dial(t, addr)
	io.WriteString(c, "GET /flood HTTP/1.1\r\nHost: x\r\n\r\n")
	testwait.For(t, flood, "the handler gives up a client that does not read")
}

func TestPanicIsAnAnswer(t *testing.T) {
	addr := serve(t, time.Minute, nil)
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

// exchange sends text on a connection of its own and returns the first answer.
func exchange(t *testing.T, addr, text string) (*http.Response, string) {
	t.Helper()
	c := dial(t, addr)
	go func() { _, _ = io.WriteString(c, text) }() // a refusal may come before all is sent
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// TestRefusals: what is refused before a handler runs looks like any other error.
func TestRefusals(t *testing.T) {
	addr := serve(t, time.Minute, nil)
	header := func(n int) string {
		return "GET /health/live HTTP/1.1\r\nHost: x\r\nX-Long: " + strings.Repeat("a", n) + "\r\n\r\n"
	}
	for _, c := range []struct {
		name, send string
		status     int
		code       string
	}{
		{"headers of 60 KiB", header(60 << 10), 200, ""},
		{"headers of 65 KiB", header(65 << 10), 431, "headers_too_large"},
		{"headers of 1 MiB", header(1 << 20), 431, "headers_too_large"},
		{"long URL", "GET /" + strings.Repeat("a", 17<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n", 414, "uri_too_long"},
		{"no HTTP", "hello there\r\n\r\n", 400, "invalid_http"},
		{"no host", "GET / HTTP/1.1\r\n\r\n", 400, "invalid_http"},
		{"unknown transfer coding", "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: rot13\r\n\r\n", 501, ""},
		{"long body announced", "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 67108865\r\n\r\n",
			413, "payload_too_large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, body := exchange(t, addr, c.send)
			if resp.StatusCode != c.status {
				t.Fatalf("%d %s, want %d", resp.StatusCode, body, c.status)
			}
			if c.status == 200 {
				return
			}
			var v struct {
				Error struct{ Message, Type, Code string }
			}
			if err := json.Unmarshal([]byte(body), &v); err != nil {
				t.Fatalf("%q: %v", body, err)
			}
			if v.Error.Message == "" || v.Error.Type != "invalid_request_error" || v.Error.Code != c.code {
				t.Errorf("%s", body)
			}
			if ct := resp.Header.Get("Content-Type"); ct != "application/json; charset=utf-8" {
				t.Errorf("content type %q", ct)
			}
		})
	}
}

// TestExpectContinue: the client is told to go on, or refused before it has sent anything.
func TestExpectContinue(t *testing.T) {
	addr := serve(t, time.Minute, nil)
	c := dial(t, addr)
	br := bufio.NewReader(c)
	io.WriteString(c, "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
	if line, err := br.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	br.ReadString('\n')
	io.WriteString(c, "hi")
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(resp.Body); string(b) != "hi" {
		t.Errorf("echo %q", b)
	}
	if resp, body := exchange(t, addr,
		"POST /nowhere HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"); resp.StatusCode != 404 {
		t.Errorf("a request that is refused anyway: %d %s", resp.StatusCode, body)
	}
}

// TestUnreadBody: after an answer that did not read the request's body the connection serves on, and says nothing
// by itself.
func TestUnreadBody(t *testing.T) {
	c := dial(t, serve(t, time.Minute, nil))
	br := bufio.NewReader(c)
	// The handler has answered before the body comes: its reading is net/http's.
	for range 20 {
		io.WriteString(c, "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n")
		time.Sleep(time.Millisecond)
		io.WriteString(c, strings.Repeat("x", 5000)+"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
		for i, want := range []int{404, 200} {
			resp, err := http.ReadResponse(br, nil)
			if err != nil {
				t.Fatal(err)
			}
			if b, _ := io.ReadAll(resp.Body); resp.StatusCode != want {
				t.Fatalf("answer %d: %d %s", i, resp.StatusCode, b)
			}
		}
	}
}

// TestPipelining: requests that come in one piece are answered in order, also after one that is refused.
func TestPipelining(t *testing.T) {
	addr := serve(t, time.Minute, nil)
	c := dial(t, addr)
	const echo = "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"
	io.WriteString(c, echo+"1"+"HEAD /health/live HTTP/1.1\r\nHost: x\r\n\r\n"+"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"+
		"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n4\r\n0\r\n\r\n")
	br := bufio.NewReader(c)
	for i, want := range []struct {
		method string
		status int
		body   string
	}{{"POST", 200, "1"}, {"HEAD", 200, ""}, {"GET", 404, ""}, {"POST", 200, "4"}} {
		resp, err := http.ReadResponse(br, &http.Request{Method: want.method})
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != want.status || want.body != "" && string(b) != want.body ||
			want.method == "HEAD" && len(b) > 0 {
			t.Errorf("answer %d: %d %q", i, resp.StatusCode, b)
		}
	}
}

// TestDamagedBodies: a body that is not what its headers say is the client's error, and never a 200.
func TestDamagedBodies(t *testing.T) {
	addr := serve(t, time.Minute, nil)
	const chunked = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, send := range map[string]string{
		"negative chunk size": chunked + "-1\r\nhello\r\n0\r\n\r\n",
		"no chunk size":       chunked + "zz\r\nhello\r\n0\r\n\r\n",
		"long chunk size":     chunked + strings.Repeat("F", 17) + "\r\nhello\r\n0\r\n\r\n",
		"chunk line ends":     chunked + "5\r\nhelloXX0\r\n\r\n",
		"long extension":      chunked + "5;" + strings.Repeat("e", 1<<20) + "\r\nhello\r\n0\r\n\r\n",
		"long trailers":       chunked + "5\r\nhello\r\n0\r\nX-Trailer: " + strings.Repeat("t", 1<<20) + "\r\n\r\n",
		"cut off":             "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf",
		"cut off in a chunk":  chunked + "64\r\nhalf",
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, addr).(*net.TCPConn)
			go func() {
				io.WriteString(c, send)
				if strings.HasPrefix(name, "cut off") {
					_ = c.CloseWrite()
				}
			}()
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != 400 || !bytes.Contains(b, []byte(`"code":"invalid_http"`)) || !resp.Close {
				t.Errorf("%d %s, close %v", resp.StatusCode, b, resp.Close)
			}
		})
	}
}

func zipped(t *testing.T, text []byte) string {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestContentEncoding: bodies may be compressed with gzip; the limit holds for what they decompress to.
func TestContentEncoding(t *testing.T) {
	addr := serve(t, time.Minute, nil)
	good := zipped(t, []byte("hello"))
	for _, c := range []struct {
		name, encoding, body string
		status               int
		want                 string
	}{
		{"none", "", "hello", 200, "hello"},
		{"identity", "identity", "hello", 200, "hello"},
		{"gzip", "gzip", good, 200, "hello"},
		{"GZip", "GZip", good, 200, "hello"},
		{"two members", "gzip", good + good, 200, "hellohello"},
		{"not gzip", "gzip", "hello", 400, "not valid gzip"},
		{"cut off", "gzip", good[:len(good)-3], 400, "not valid gzip"},
		{"wrong sum", "gzip", good[:len(good)-6] + "xx" + good[len(good)-4:], 400, "not valid gzip"},
		{"bomb", "gzip", zipped(t, make([]byte, maxBodyBytes+1)), 413, "payload_too_large"},
		{"just fits", "gzip", zipped(t, make([]byte, maxBodyBytes)), 200, ""},
		{"zstd", "zstd", "hello", 415, "unsupported_encoding"},
		{"twice", "gzip, gzip", zipped(t, []byte(good)), 415, "unsupported_encoding"},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/echo",
				strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Close = true
			if c.encoding != "" {
				req.Header.Set("Content-Encoding", c.encoding)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != c.status || !strings.Contains(string(b[:min(len(b), 500)]), c.want) {
				t.Errorf("%d %.200q", resp.StatusCode, b)
			}
			if accepts := resp.Header.Get("Accept-Encoding"); (accepts != "") != (c.status == 415) {
				t.Errorf("accepts %q", accepts)
			}
		})
	}
}

// TestLeftRequestGetsNoAnswer: a client that left while nothing was written gets no status, least of all 200.
func TestLeftRequestGetsNoAnswer(t *testing.T) {
	addr := serve(t, time.Minute, nil)
	c := dial(t, addr).(*net.TCPConn)
	io.WriteString(c, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); len(b) > 0 {
		t.Errorf("got %q, %v", b, err)
	}
}
