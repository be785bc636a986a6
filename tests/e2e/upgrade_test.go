package e2e

import (
	"os"
	"testing"

	"github.com/tandem-inference/tandem/tests/etcd"
	"github.com/tandem-inference/tandem/tests/faults"
)

// TestRollingUpgrade is the short form of bench/upgrade, with the same programs before and after: while every process
// is replaced no request fails, and no text changes.
func TestRollingUpgrade(t *testing.T) {
	needPrograms(t)
	cfg := faults.Upgrade{Store: "etcd://" + etcd.Start(t).Endpoint + "/upgrade", Drains: true,
		Config: faults.Config{Clients: 2, Tokens: 40, Asks: 5, Seed: 1, Slack: 60}}
	if testing.Verbose() {
		cfg.Log = os.Stderr
	}
	r, err := faults.RunUpgrade(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r.Report)
	for _, p := range r.Problems(5) {
		t.Error(p)
	}
	if len(r.Steps) != 6 || r.Tokens == 0 {
		t.Errorf("%d processes were replaced, %d tokens compared", len(r.Steps), r.Tokens)
	}
}
