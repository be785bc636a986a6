package config

import (
	"net"
	"strings"
)

// Warning is a setting that is legal and probably not what was meant.
type Warning struct {
	// Flag is the setting's name without dashes.
	Flag string
	// Text says what may go wrong and what to set instead.
	Text string
}

// String is the form of messages.
func (w Warning) String() string { return "--" + w.Flag + ": " + w.Text }

// Checker is a command that has warnings about its settings.
type Checker interface{ Check() []Warning }

// Exposed reports whether a listener at address, host:port or unix://path, can be reached from other machines. Names
// other than localhost count as reachable.
func Exposed(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return false
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	if ip := net.ParseIP(host); ip != nil {
		return !ip.IsLoopback()
	}
	return !strings.EqualFold(host, "localhost")
}
