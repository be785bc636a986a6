package e2e

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-inference/tandem/tests/client"
	"github.com/tandem-inference/tandem/tests/cluster"
)

// lockedBuffer is a log that a running cluster writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestCleanEnd: a cluster that is told to end warns of nothing, and no worker is said to be lost.
func TestCleanEnd(t *testing.T) {
	needPrograms(t)
	log := &lockedBuffer{}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl, err := cluster.Start(ctx, cluster.Options{Args: []string{"--demo", "--log-format", "json"}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := client.New(cl.HTTP).Do(t.Context(),
		client.Request{Messages: chat("What is DDTree?"), MaxTokens: 8}); err != nil {
		t.Fatal(err)
	}
	before := len(log.String())
	if err := cl.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(log.String()[before:]) {
		lines++
		if strings.Contains(line, `"level":"warn"`) || strings.Contains(line, `"level":"error"`) {
			t.Errorf("a clean end logs %s", line)
		}
	}
	if lines == 0 {
		t.Error("nothing was logged: the test looks at the wrong place")
	}
}
