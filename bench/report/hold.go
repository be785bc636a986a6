package report

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/tandem-inference/tandem/tests/cluster"
	"golang.org/x/sys/unix"
)

// Processors returns the numbers of those that this process may use.
func Processors() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	var out []int
	for at := 0; len(out) < set.Count(); at++ {
		if set.IsSet(at) {
			out = append(out, at)
		}
	}
	return out, nil
}

// Hold holds the threads of a process to a processor; later ones inherit it.
func Hold(pid, processor int) error {
	var one unix.CPUSet
	one.Set(processor)
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(id, &one); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("hold thread %d of process %d to processor %d: %w", id, pid, processor, err)
		}
	}
	return nil
}

// HoldRole holds a cluster's worker and its engines to a processor.
func HoldRole(cl *cluster.Cluster, worker string, processor int) error {
	pid := cl.Find(worker)
	if pid == 0 {
		return fmt.Errorf("the cluster has no process %s", worker)
	}
	for _, p := range cl.Processes() {
		if p.PID != pid && (p.Name != "tandem-engine" || p.Parent != pid) {
			continue
		}
		if err := Hold(p.PID, processor); err != nil {
			return err
		}
	}
	return nil
}
