// Package etcd runs an etcd inside a test.
package etcd

import (
	"net"
	"net/url"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// Server is an etcd of one member.
type Server struct {
	// Endpoint is the address of its clients.
	Endpoint string

	config *embed.Config
	etcd   *embed.Etcd
}

// Start runs an etcd until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.LogOutputs = t.TempDir(), "fatal", []string{"stderr"}
	c.UnsafeNoFsync = true // what a test writes need not outlive the machine
	peer := url.URL{Scheme: "http", Host: free(t)}
	client := url.URL{Scheme: "http", Host: free(t)}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	// A lease of two seconds is the shortest that an election timeout of a second leaves.
	c.TickMs, c.ElectionMs = 100, 1000
	s := &Server{Endpoint: client.Host, config: c}
	t.Cleanup(s.Stop)
	s.Again(t)
	return s
}

// Again starts an etcd that was stopped, with what it had.
func (s *Server) Again(t testing.TB) {
	t.Helper()
	e, err := embed.StartEtcd(s.config)
	if err != nil {
		t.Fatal(err)
	}
	s.etcd = e
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		t.Fatal(err)
	case <-time.After(time.Minute):
		t.Fatal("etcd does not start")
	}
}

// Stop ends the etcd as far as it runs.
func (s *Server) Stop() {
	if s.etcd != nil {
		s.etcd.Close()
		s.etcd = nil
	}
}

// free is an address that nobody has at the moment.
func free(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
