package workernode

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// socketPath returns the path of a unix address (unix:///path, unix://path or unix:path).
func socketPath(address string) (string, bool) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return path, true
	}
	return strings.CutPrefix(address, "unix:")
}

// DialTarget is the form of an address that gRPC dials.
func DialTarget(address string) string {
	if path, ok := socketPath(address); ok {
		return "unix:" + path
	}
	return address
}

// Listen opens a listener at host:port or a unix socket. A socket that nobody answers at is left over from a worker
// that was killed, and is replaced.
func Listen(address string) (net.Listener, error) {
	path, ok := socketPath(address)
	if !ok {
		return net.Listen("tcp", address)
	}
	l, err := net.Listen("unix", path)
	if err == nil {
		return l, nil
	}
	info, serr := os.Lstat(path)
	if serr != nil || info.Mode()&os.ModeSocket == 0 {
		return nil, err
	}
	if conn, derr := net.DialTimeout("unix", path, time.Second); derr == nil {
		conn.Close()
		return nil, fmt.Errorf("another process serves at %s", path)
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return net.Listen("unix", path)
}

// Address is what peers dial to reach a listener: its own address, with the host's name in place of a wildcard.
func Address(l net.Listener) string {
	switch a := l.Addr().(type) {
	case *net.UnixAddr:
		return "unix://" + a.Name
	case *net.TCPAddr:
		if a.IP.IsUnspecified() {
			if host, err := os.Hostname(); err == nil {
				return net.JoinHostPort(host, fmt.Sprint(a.Port))
			}
		}
	}
	return l.Addr().String()
}
