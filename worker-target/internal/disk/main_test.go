package disk

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(killedDir); dir != "" {
		writeUntilKilled(dir)
	}
	goleak.VerifyTestMain(m)
}
