package cli

import (
	"os"

	"github.com/tandem-inference/tandem/services/telemetry"
	"golang.org/x/sys/unix"
)

// isTerminal says whether a stream of ours is a person's terminal.
func isTerminal(stream any) bool {
	return telemetry.IsTerminal(stream)
}

// terminalWidth is the number of columns, 80 when it is not known.
func terminalWidth(stream any) int {
	if file, ok := stream.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return int(size.Col)
		}
	}
	return 80
}
