package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/overload"
)

// TestOverload is the short form of bench/overload: what is served is not slowed down by what is refused, and clients
// that leave leave nothing.
func TestOverload(t *testing.T) {
	cfg := overload.Config{
		// Other tests share the machine: only a collapse is a failure here.
		Peak: 5 * time.Second, Overload: 10 * time.Second, Factor: 5, Least: 0.5, Tries: 3, Slots: 4, Queue: 8, Clients: 8,
		Disconnects: 300, Tokens: 64, MemoryRise: 0.25, MemorySlack: 64 << 20,
	}
	if testing.Verbose() {
		cfg.Log = os.Stderr
	}
	for _, variable := range cfg.Env() {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	cl := start(t, cfg.Args()...)
	r, err := overload.Run(t.Context(), cl, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	for _, p := range r.Problems {
		t.Error(p)
	}
}
