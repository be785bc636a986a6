package unixsocket

import "strings"

// Path returns the path of a unix address (unix:///path, unix://path or unix:path).
func Path(address string) (string, bool) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return path, true
	}
	return strings.CutPrefix(address, "unix:")
}

// DialTarget is the form of an address that gRPC dials: unix:path, or host:port as it is.
func DialTarget(address string) string {
	if path, ok := Path(address); ok {
		return "unix:" + path
	}
	return address
}
