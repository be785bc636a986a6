package e2e

import (
	"bytes"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/faults"
	"github.com/tandem-inference/tandem/tests/faults/history"
)

// TestFaults is the short form of bench/faults: whatever of a cluster is killed, stopped or cut off, no token is lost,
// doubled or different. Pauses are not judged: the machine may be busy with other things.
func TestFaults(t *testing.T) {
	needPrograms(t)
	var lines bytes.Buffer
	cfg := faults.Config{Kills: 4, Hangs: 2, Seed: 1, Clients: 2, Tokens: 40, Asks: 5, Gateways: 1,
		GatewayPause: 100 * time.Millisecond, HangTimeout: time.Second, Slack: 60, History: &lines,
		Only: regexp.MustCompile("^(kill (target|stage|draft|scorer)|stop draft|cut target)$").MatchString}
	if testing.Verbose() {
		cfg.Log = os.Stderr
	}
	r, err := faults.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r.Report)
	for _, p := range r.Problems(5) {
		t.Error(p)
	}
	if r.Kills != 4 || r.Hangs != 2 || r.Tokens == 0 {
		t.Errorf("%d kills, %d hangs, %d tokens", r.Kills, r.Hangs, r.Tokens)
	}
	// What was written is what was checked.
	if records, err := history.Read(&lines); err != nil || history.Check(records, history.Limits{}).Tokens != r.Tokens {
		t.Errorf("the history that was written: %v", err)
	}
}
