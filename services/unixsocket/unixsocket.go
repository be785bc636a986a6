// Package unixsocket opens sockets in the file system that only their owner reaches.
package unixsocket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Listen opens a socket of mode 0600. One that nobody answers at is left over from a process that was killed, and is
// replaced.
func Listen(path string) (net.Listener, error) {
	l, err := net.Listen("unix", path)
	if err != nil {
		if err = leftover(path, err); err == nil {
			l, err = net.Listen("unix", path)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// leftover removes a socket without a process behind it; otherwise it returns why there can be no new one.
func leftover(path string, err error) error {
	info, serr := os.Lstat(path)
	if serr != nil || info.Mode()&os.ModeSocket == 0 {
		return err
	}
	if conn, derr := net.DialTimeout("unix", path, time.Second); derr == nil {
		conn.Close()
		return fmt.Errorf("another process serves at %s", path)
	}
	return os.Remove(path)
}
