// Package identitytest makes connections of this host look like those of another one, from which package identity wants
// certificates.
package identitytest

import (
	"context"
	"net"
)

// Listener is a listener whose connections seem to come from another host.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return remote{c}, err
}

// Dial dials an address of this host, whose connection seems to be with another one.
func Dial(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	return remote{c}, err
}

type remote struct{ net.Conn }

func (remote) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 7} }
