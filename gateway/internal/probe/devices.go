package probe

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/tandem-inference/tandem/gateway/internal/doctor"
	"github.com/tandem-inference/tandem/services/config"
	"github.com/tandem-inference/tandem/services/device"
)

// Devices are those of a machine with the files root that the libraries in a folder serve: the cpu, and the cards that
// the drivers show.
func Devices(root fs.FS, libraries string) (names []string) {
	cuda, hip := doctor.Cards(root)
	for _, d := range []struct {
		backend string
		n       int
	}{{"cuda", cuda}, {"hip", hip}, {"cpu", 1}} {
		if _, err := device.FindLibrary(libraries, device.Name{Backend: d.backend}); err != nil {
			continue
		}
		for i := range d.n {
			if d.backend == "cpu" {
				names = append(names, "cpu")
			} else {
				names = append(names, fmt.Sprintf("%s:%d", d.backend, i))
			}
		}
	}
	return names
}

// hostMemory is all memory of the machine, 0 when it is unknown.
func hostMemory() config.Size {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) >= 2 && fields[0] == "MemTotal:" {
			if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				return config.Size(n << 10)
			}
		}
	}
	return 0
}
