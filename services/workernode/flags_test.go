package workernode

import (
	"strings"
	"testing"
)

// TestOffHost: an address that other hosts reach wants a certificate, or somebody who says that there is to be none.
func TestOffHost(t *testing.T) {
	for address, far := range map[string]bool{"127.0.0.1:0": false, "unix:///x.sock": false, "localhost:1": false,
		"0.0.0.0:9200": true, ":9200": true, "10.1.2.3:9200": true} {
		bare := Flags{Listen: address, Device: "cpu", HangTimeout: "3s"}
		if err := bare.Validate(); (err != nil) != far || far && !strings.Contains(err.Error(), "--listen") {
			t.Errorf("--listen %s: %v", address, err)
		}
		beside := Flags{Listen: "unix:///x.sock", RemoteListen: address, Device: "cpu", HangTimeout: "3s"}
		if err := beside.Validate(); !strings.HasPrefix(address, "unix:") &&
			((err != nil) != far || far && !strings.Contains(err.Error(), "--remote-listen")) {
			t.Errorf("--remote-listen %s: %v", address, err)
		}
		beside.Plaintext = true
		if warned := len(beside.Check()) > 0; warned != far {
			t.Errorf("--remote-listen %s --plaintext: warned %v", address, warned)
		}
		joins := Flags{Gateway: []string{address}, Device: "cpu", HangTimeout: "3s"}
		if err := joins.Validate(); (err != nil) != far || far && !strings.Contains(err.Error(), "--gateway") {
			t.Errorf("--gateway %s: %v", address, err)
		}
		for name, c := range map[string]CertFlags{"--certs": {Certs: "x"}, "--join-token": {JoinToken: "x"},
			"--join-token-file": {JoinTokenFile: "x"}, "--plaintext": {Plaintext: true}} {
			f := Flags{Listen: address, Gateway: []string{"127.0.0.1:1"}, Device: "cpu", HangTimeout: "3s", CertFlags: c}
			if err := f.Validate(); err != nil {
				t.Errorf("%s %s: %v", name, address, err)
			}
			if warned := len(f.Check()) > 0; warned != (far && c.Plaintext) {
				t.Errorf("%s %s: warned %v", name, address, warned)
			}
		}
	}
	for want, c := range map[string]Flags{
		"whose --listen is a socket": {Listen: "127.0.0.1:0", RemoteListen: "127.0.0.1:0"},
		"--remote-listen: address s": {Listen: "unix:///x.sock", RemoteListen: "s"},
	} {
		c.Device, c.HangTimeout = "cpu", "3s"
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--listen %s --remote-listen %s: %v", c.Listen, c.RemoteListen, err)
		}
	}
	for want, c := range map[string]CertFlags{
		"--plaintext":       {Certs: "x", Plaintext: true},
		"--join-token-file": {JoinToken: "x", JoinTokenFile: "y"},
		"--join-token":      {JoinToken: "x"},
	} {
		f := Flags{Listen: "127.0.0.1:0", Device: "cpu", HangTimeout: "3s", CertFlags: c}
		if err := f.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
