// Package etcd runs an etcd inside a test or a measurement.
package etcd

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/tandem-inference/tandem/tests/cluster"
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
	s, err := Open(t.TempDir(), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Open runs an etcd with its files in a folder. Clients reach it at an address of this host.
func Open(dir, ip string) (*Server, error) {
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.LogOutputs = dir, "fatal", []string{"stderr"}
	c.UnsafeNoFsync = true // what a test writes need not outlive the machine
	hosts, err := cluster.FreeAddresses("127.0.0.1", 2)
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(hosts[1])
	if err != nil {
		return nil, err
	}
	peer := url.URL{Scheme: "http", Host: hosts[0]}
	client := url.URL{Scheme: "http", Host: net.JoinHostPort(ip, port)}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	// A lease of two seconds is the shortest that an election timeout of a second leaves.
	c.TickMs, c.ElectionMs = 100, 1000
	s := &Server{Endpoint: client.Host, config: c}
	return s, s.run()
}

// Again starts an etcd that was stopped, with what it had.
func (s *Server) Again(t testing.TB) {
	t.Helper()
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) run() error {
	e, err := embed.StartEtcd(s.config)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	s.etcd = e
	select {
	case <-e.Server.ReadyNotify():
		return nil
	case err = <-e.Err():
	case <-time.After(time.Minute):
		err = errors.New("it does not start")
	}
	s.Stop()
	return fmt.Errorf("etcd: %w", err)
}

// Stop ends the etcd as far as it runs.
func (s *Server) Stop() {
	if s.etcd != nil {
		s.etcd.Close()
		s.etcd = nil
	}
}
