package workernode

import (
	"cmp"
	"fmt"
	"net"
	"os"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/telemetry"
	"github.com/tandem-inference/tandem/services/unixsocket"
	"go.uber.org/zap"
)

func dialTargets(addresses []string) []string {
	out := make([]string, len(addresses))
	for i, a := range addresses {
		out[i] = unixsocket.DialTarget(a)
	}
	return out
}

// listen opens the listeners that the flags ask for, that of --listen first.
func listen(f *Flags) ([]net.Listener, error) {
	own, err := Listen(f.Listen)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	if f.RemoteListen == "" {
		return []net.Listener{own}, nil
	}
	remote, err := Listen(f.RemoteListen)
	if err != nil {
		_ = own.Close()
		return nil, fmt.Errorf("--remote-listen: %w", err)
	}
	return []net.Listener{own, remote}, nil
}

// name fills in where a worker is reached that serves at the listeners of its flags.
func name(r *tandemv1.Registration, f *Flags, listeners []net.Listener) {
	reached := cmp.Or(f.Advertise, Address(listeners[len(listeners)-1]))
	if len(listeners) == 1 {
		r.Address = reached
	} else {
		r.Address, r.RemoteAddress = Address(listeners[0]), reached
	}
	if path, ok := unixsocket.Path(r.GetAddress()); ok {
		if info, err := os.Stat(path); err == nil {
			r.SocketMadeUnixNs = info.ModTime().UnixNano()
		}
	}
}

// addresses are those of a registration, for the log.
func addresses(r *tandemv1.Registration) []zap.Field {
	fields := []zap.Field{zap.String(telemetry.KeyAddress, r.GetAddress())}
	if remote := r.GetRemoteAddress(); remote != "" {
		fields = append(fields, zap.String("remote_address", remote))
	}
	return fields
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
