package cluster

import "net"

// FreeAddresses are n addresses with an IP of this host that nobody has at the moment.
func FreeAddresses(ip string, n int) (at []string, err error) {
	for range n {
		l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
		if err != nil {
			return nil, err
		}
		defer l.Close()
		at = append(at, l.Addr().String())
	}
	return at, nil
}
