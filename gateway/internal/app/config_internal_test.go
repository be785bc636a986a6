package app

import (
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestTakenPortsSayWhatToTry opens each port twice: the message names the flag and a value that works.
func TestTakenPortsSayWhatToTry(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	for flag, set := range map[string]func(c *Config, port int){
		"--port":            func(c *Config, port int) { c.Port = port },
		"--grpc-port":       func(c *Config, port int) { c.GRPCPort = port },
		"--registry-listen": func(c *Config, port int) { c.RegistryListen = fmt.Sprint("127.0.0.1:", port) },
	} {
		cfg := Defaults()
		cfg.Port, cfg.GRPCPort, cfg.RegistryListen = 0, 0, "127.0.0.1:0"
		set(&cfg, port)
		_, err := New(cfg, Deps{})
		try := regexp.MustCompile(flag + `: another program uses port ` + strconv.Itoa(port) + `; try ` + flag +
			` (?:127\.0\.0\.1:)?(\d+)`)
		if err == nil || try.FindStringSubmatch(err.Error()) == nil {
			t.Errorf("%s: New = %v", flag, err)
			continue
		}
		free, _ := strconv.Atoi(try.FindStringSubmatch(err.Error())[1])
		set(&cfg, free)
		a, err := New(cfg, Deps{})
		if err != nil {
			t.Errorf("%s: what was proposed does not work: %v", flag, err)
			continue
		}
		a.closeListeners()
		a.cancelRequests(nil)
	}
}

// TestWarnings: every listener that other machines reach without protection is named, and what is safe is not.
func TestWarnings(t *testing.T) {
	key := func(c *Config) { c.APIKey = append(c.APIKey, "k") }
	for _, c := range []struct {
		name   string
		change []func(*Config)
		want   []string // flags
	}{
		{"defaults", nil, nil},
		{"a name of this machine", []func(*Config){func(c *Config) { c.Host = "localhost" }}, nil},
		{"all addresses", []func(*Config){func(c *Config) { c.Host = "0.0.0.0" }}, []string{"host: no key"}},
		{"an address", []func(*Config){func(c *Config) { c.Host = "192.168.1.2" }}, []string{"host: no key"}},
		{"all addresses of IPv6", []func(*Config){func(c *Config) { c.Host = "::" }}, []string{"host: no key"}},
		{"with a key", []func(*Config){key, func(c *Config) { c.Host = "0.0.0.0" }}, []string{"host: without TLS"}},
		{"with a key and TLS", []func(*Config){key, func(c *Config) { c.Host, c.TLSCert, c.TLSKey = "0.0.0.0", "c", "k" }},
			nil},
		{"registry", []func(*Config){func(c *Config) { c.RegistryListen = "0.0.0.0:9100" }}, nil},
		{"registry without certificates", []func(*Config){func(c *Config) {
			c.RegistryListen, c.Plaintext = "0.0.0.0:9100", true
		}}, []string{"plaintext: join as a worker"}},
		{"registry on a socket", []func(*Config){func(c *Config) { c.RegistryListen = "unix:///run/x" }}, nil},
		{"all origins", []func(*Config){func(c *Config) { c.CORSOrigin = []string{"*"} }},
			[]string{"cors-origin: every web page"}},
		{"all origins with a key", []func(*Config){key, func(c *Config) { c.CORSOrigin = []string{"*"} }}, nil},
	} {
		cfg := Defaults()
		for _, change := range c.change {
			change(&cfg)
		}
		got := cfg.Check()
		if len(got) != len(c.want) {
			t.Errorf("%s: %v", c.name, got)
			continue
		}
		for i, w := range got {
			flag, words, _ := strings.Cut(c.want[i], ": ")
			if w.Flag != flag || !strings.Contains(strings.ReplaceAll(w.Text, "no key is asked for", "no key"), words) {
				t.Errorf("%s: %v, want %q", c.name, w, c.want[i])
			}
		}
	}
}
