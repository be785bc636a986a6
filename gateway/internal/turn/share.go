package turn

import (
	"net"
	"strconv"
)

// defaultPriority is in the middle of 0 and 9.
const defaultPriority = 5

// Share identifies the client, for fair turns in the queue: the API key where there are keys, else the session, else
// the host that the request came from. scope is the Call's, address that of the peer.
func Share(scope, session, address string) string {
	switch {
	case scope != "":
		return "key " + scope
	case session != "":
		return "session " + session
	}
	// A host may open many connections. Sockets of the file system have no host.
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	return "host " + address
}

// Priority reads the X-Priority of headers or metadata, which only trusted keys may set; a value that is not a digit
// counts as absent.
func Priority(trusted bool, value string) int {
	if p, err := strconv.Atoi(value); trusted && err == nil && p >= 0 && p <= 9 {
		return p
	}
	return defaultPriority
}
