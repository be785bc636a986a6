package wholefile

import (
	"fmt"
	"os"
	"syscall"
)

// Stamp tells versions of a file apart: by time and size, and by the file itself, because clocks of file systems are
// coarse. It is "" where there is none.
func Stamp(path string) string {
	st, err := os.Stat(path)
	if err != nil {
		return ""
	}
	var inode uint64
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		inode = sys.Ino
	}
	return fmt.Sprintf("%d %d %d", st.ModTime().UnixNano(), st.Size(), inode)
}
