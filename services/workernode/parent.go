package workernode

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"
)

// parentPoll is how often the parent is looked for: often enough to free a device before somebody else wants it.
const parentPoll = 500 * time.Millisecond

// watchParent returns an error when the process pid is gone, nil when ctx ends.
func watchParent(ctx context.Context, pid int) error {
	ticker := time.NewTicker(parentPoll)
	defer ticker.Stop()
	for {
		// A parent that died may be a zombie for a while, or its number be taken again: being adopted shows it sooner.
		adopted := startParent == pid && os.Getppid() != pid
		if err := syscall.Kill(pid, 0); adopted || err == syscall.ESRCH {
			return fmt.Errorf("parent process %d is gone", pid)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// startParent is who our parent was at the start.
var startParent = os.Getppid()
