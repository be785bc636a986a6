package cluster

import (
	"os"
	"testing"
)

// SkipClients ends a test of clients that are not installed: it skips with the reason why, or fails where variable
// holds "required", as on machines that have just installed them. Any other value is added to the reason: what kept
// them from being installed.
func SkipClients(t *testing.T, variable, reason string) {
	t.Helper()
	switch why := os.Getenv(variable); why {
	case "required":
		t.Fatal(reason)
	case "":
		t.Skip(reason)
	default:
		t.Skipf("%s (%s)", reason, why)
	}
}
