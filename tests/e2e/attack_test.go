package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// huge is the codec of an attacker: every message is a gigabyte of one and the same megabyte.
type huge struct{}

func (huge) Name() string { return "proto" }

func (huge) Marshal(any) (mem.BufferSlice, error) {
	piece := mem.SliceBuffer(make([]byte, 1<<20))
	out := make(mem.BufferSlice, 1<<10)
	for i := range out {
		out[i] = piece
	}
	return out, nil
}

func (huge) Unmarshal(mem.BufferSlice, any) error { return nil }

// TestAttacks: messages of a gigabyte at every port, and connections to the registry that send a byte now and then, are
// refused; no process grows, and the cluster serves on.
func TestAttacks(t *testing.T) {
	ip := ownAddress(t)
	ports := freePorts(t, ip, 2)
	authority := filepath.Join(t.TempDir(), "authority")
	cl := start(t, "--demo", "--threads", "1", "--registry-listen", ports[0], "--authority", authority)
	c := client.New(cl.HTTP)
	joined := join(t, c, ports[0], "another", "--threads", "1", "--listen", ports[1], "--certs", t.TempDir(),
		"--join-token", certs(t, "token", "target", "--authority", authority))
	ask := client.Request{Messages: chat("What is DDTree?"), MaxTokens: 20}
	want, err := c.Do(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	pids := map[string]int{"gateway": cl.PID(), "worker": joined.PID()}
	memory := func() map[string]int64 {
		out := map[string]int64{}
		for name, pid := range pids {
			s, err := cluster.SizesOf(pid)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			out[name] = s.RSSBytes
		}
		return out
	}
	before := memory()
	anybody := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	for _, port := range []struct {
		name, address, method string
		creds                 credentials.TransportCredentials
	}{
		{"gRPC", cl.GRPC, tandemv1.InferenceService_Tokenize_FullMethodName, insecure.NewCredentials()},
		{"registry", ports[0], tandemv1.CertificateService_IssueCertificate_FullMethodName, anybody},
		{"worker", ports[1], healthv1.Health_Check_FullMethodName, anybody},
	} {
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				conn, err := grpc.NewClient(port.address, grpc.WithTransportCredentials(port.creds))
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				err = conn.Invoke(t.Context(), port.method, struct{}{}, nil, grpc.ForceCodecV2(huge{}),
					grpc.MaxCallSendMsgSize(2<<30))
				if code := status.Code(err); code != codes.ResourceExhausted {
					t.Errorf("%s: a message of a gigabyte: %v", port.name, err)
				}
			})
		}
		group.Wait()
	}
	body := io.LimitReader(zeros{}, 1<<30)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, cl.HTTP+"/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	request.ContentLength = 1 << 30
	request.Header.Set("Content-Type", "application/json")
	if response, err := http.DefaultClient.Do(request); err == nil { // or it was cut off while it was sent
		_ = response.Body.Close()
		if response.StatusCode != http.StatusRequestEntityTooLarge && response.StatusCode != http.StatusBadRequest {
			t.Errorf("HTTP: a body of a gigabyte: status %d", response.StatusCode)
		}
	}
	slow(t, ports[0], 160)
	eventually(t, "the log says that connections were refused", func() bool {
		return strings.Contains(cl.Log(), "too many are open")
	})
	for name, after := range memory() {
		t.Logf("%s: %d MB, before %d MB", name, after>>20, before[name]>>20)
		if after > before[name]+64<<20 {
			t.Errorf("%s grew from %d to %d MB", name, before[name]>>20, after>>20)
		}
	}
	got, err := c.Do(t.Context(), ask)
	if err != nil || got.Text != want.Text {
		t.Errorf("afterwards: %q, %v; want %q", got.Text, err, want.Text)
	}
	// Connections that say nothing of use are closed, and the place of their host is free again.
	join(t, c, ports[0], "third", "--threads", "1", "--listen", net.JoinHostPort(ip, "0"), "--certs", t.TempDir(),
		"--join-token", certs(t, "token", "target", "--authority", authority))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// slow opens connections that send a byte of a handshake now and then, until the test ends or they are closed.
func slow(t *testing.T, address string, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	t.Cleanup(func() { cancel(); group.Wait() })
	for range n {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			defer conn.Close()
			hello := bytes.NewReader([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3})
			ticker := time.NewTicker(time.Second)
			defer ticker.Stop()
			for {
				if _, err := io.CopyN(conn, hello, 1); err != nil {
					return
				}
				select {
				case <-ticker.C:
				case <-ctx.Done():
					return
				}
			}
		})
	}
}
