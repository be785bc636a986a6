package workernode

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/tandem-inference/tandem/services/unixsocket"
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

func dialTargets(addresses []string) []string {
	out := make([]string, len(addresses))
	for i, a := range addresses {
		out[i] = DialTarget(a)
	}
	return out
}

// Listen opens a listener at host:port or a unix socket.
func Listen(address string) (net.Listener, error) {
	if path, ok := socketPath(address); ok {
		return unixsocket.Listen(path)
	}
	return net.Listen("tcp", address)
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
