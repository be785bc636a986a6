package registry

import (
	"os"

	"github.com/tandem-inference/tandem/services/unixsocket"
)

// Reachable is a message that says where a worker is reached: a Registration, or one with addresses of one.
type Reachable interface {
	GetAddress() string
	GetRemoteAddress() string
	GetSocketMadeUnixNs() int64
}

// Reach is the address of a worker as seen from this host. A socket that is not in this host's files is that of another
// host: the worker is reached at its remote address then, where it has one.
func Reach(w Reachable) string {
	if w.GetRemoteAddress() != "" && !Here(w) { // most workers have none, and need no look at files
		return w.GetRemoteAddress()
	}
	return w.GetAddress()
}

// Here reports whether the address of a worker may be used on this host: it is no socket, or one that is there and not
// that of another worker at the same path.
func Here(w Reachable) bool {
	path, ok := unixsocket.Path(w.GetAddress())
	if !ok {
		return true
	}
	made := w.GetSocketMadeUnixNs()
	info, err := os.Stat(path)
	return err == nil && (made == 0 || made == info.ModTime().UnixNano())
}

// ReachedAt reports whether a worker is reached at an address, from its own host or from others.
func ReachedAt(w Reachable, address string) bool {
	return address == w.GetAddress() || address != "" && address == w.GetRemoteAddress()
}
