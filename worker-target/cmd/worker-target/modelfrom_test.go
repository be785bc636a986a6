package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	tandemv1 "github.com/tandem-inference/tandem/proto/tandem/v1"
	"github.com/tandem-inference/tandem/services/workernode"
)

// TestModelFrom: what --model-from may name, and which targets auto takes.
func TestModelFrom(t *testing.T) {
	for want, c := range map[string]struct {
		from    string
		gateway []string
	}{
		"auto asks the gateway":        {from: "auto"},
		"wants auto, or an address":    {from: "auto,unix:///a", gateway: []string{"unix:///g"}},
		`got ["unix:///a" "unix:///a`:  {from: "unix:///a,unix:///a"},
		"--model-from: 192.0.2.1:1 is": {from: "192.0.2.1:1"},
	} {
		s := StageFlags{ModelFrom: strings.Split(c.from, ",")}
		if err := s.validateFrom(&workernode.Flags{Gateway: c.gateway}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", c.from, err, want)
		}
	}
	for _, from := range []string{"auto", "unix:///a,127.0.0.1:9"} {
		s := StageFlags{ModelFrom: strings.Split(from, ",")}
		if err := s.validateFrom(&workernode.Flags{Gateway: []string{"unix:///g"}}); err != nil {
			t.Errorf("%s: %v", from, err)
		}
	}
	there := func(name string) string { // a socket of this host
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return "unix://" + path
	}
	targets := []*tandemv1.TargetEntry{{WorkerId: "a", Address: "192.0.2.1:1", ModelDigest: "1", ModelName: "m"},
		{WorkerId: "b", Address: there("b"), ModelDigest: "1"}, {WorkerId: "c", Address: "unix:///of/c", ModelDigest: "1"}}
	if got, err := addressesOf(targets); err != nil || len(got) != 2 || got[0] != "192.0.2.1:1" ||
		got[1] != targets[1].Address {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := addressesOf(targets[2:]); err == nil ||
		!strings.Contains(err.Error(), "(c) are reached on their own host") {
		t.Errorf("a socket of another host: %v, %v", got, err)
	}
	targets[2].RemoteAddress = "192.0.2.3:3"
	if got, err := addressesOf(targets[2:]); err != nil || len(got) != 1 || got[0] != "192.0.2.3:3" {
		t.Errorf("a socket of another host that is reached at an address: %v, %v", got, err)
	}
	targets[1].ModelDigest = "2"
	const want = "targets a and b have different models"
	if _, err := addressesOf(targets); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v", err)
	}
}
