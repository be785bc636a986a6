package workernode

import (
	"fmt"
	"net"
	"os"

	"github.com/tandem-inference/tandem/services/unixsocket"
)

func dialTargets(addresses []string) []string {
	out := make([]string, len(addresses))
	for i, a := range addresses {
		out[i] = unixsocket.DialTarget(a)
	}
	return out
}

// Listen opens a listener at host:port or a unix socket.
func Listen(address string) (net.Listener, error) {
	if path, ok := unixsocket.Path(address); ok {
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
