package faults

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// host is where a part of the cluster runs: this one, or a network namespace behind a pair of virtual Ethernet devices,
// in which packets can be dropped.
type host struct {
	ip     string
	holder *exec.Cmd // keeps the namespace; nil = none
}

// Namespaces says why this process cannot make network namespaces; nil = it can.
func Namespaces(ctx context.Context) error {
	for _, line := range []string{"nft --version", "ip -Version", "nsenter --version", "unshare --net true"} {
		words := strings.Fields(line)
		if out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return nil
}

// Inside runs this program again, in a network namespace of its own, in which hosts are made. Its environment names
// variable then. It returns only if it fails.
func Inside(variable string) error {
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(unshare, append([]string{"unshare", "--net", "--", self}, os.Args[1:]...),
		append(os.Environ(), variable+"=1"))
}

// loopback is this host.
func loopback() *host { return &host{ip: "127.0.0.1"} }

// newHost makes host n, from 1, in a namespace. This process is in one of its own already (Inside).
func newHost(ctx context.Context, n int) (*host, error) {
	h := &host{ip: fmt.Sprintf("10.77.%d.2", n), holder: exec.Command("unshare", "--net", "sleep", "infinity")}
	h.holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := h.holder.Start(); err != nil {
		return nil, err
	}
	pid := strconv.Itoa(h.holder.Process.Pid)
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return h, err
	}
	for { // until unshare has made the namespace
		if other, err := os.Readlink("/proc/" + pid + "/ns/net"); err != nil || ctx.Err() != nil {
			return h, fmt.Errorf("namespace of host %d: %w", n, err)
		} else if other != own {
			break
		}
	}
	device := fmt.Sprint("host", n)
	for _, line := range []string{
		"ip link set lo up",
		"ip link add " + device + " type veth peer name eth0 netns " + pid,
		fmt.Sprintf("ip addr add 10.77.%d.1/24 dev %s", n, device),
		"ip link set " + device + " up",
		"nsenter -t " + pid + " -n ip link set lo up",
		"nsenter -t " + pid + " -n ip addr add " + h.ip + "/24 dev eth0",
		"nsenter -t " + pid + " -n ip link set eth0 up",
		fmt.Sprintf("nsenter -t %s -n ip route add default via 10.77.%d.1", pid, n),
	} {
		if err := command(ctx, "", strings.Fields(line)...); err != nil {
			return h, err
		}
	}
	return h, nil
}

func command(ctx context.Context, input string, words ...string) error {
	c := exec.CommandContext(ctx, words[0], words[1:]...)
	c.Stdin = strings.NewReader(input)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, out)
	}
	return nil
}

// gate is the address at which the host reaches this process.
func (h *host) gate() string {
	if h.holder == nil {
		return h.ip
	}
	return strings.TrimSuffix(h.ip, "2") + "1"
}

// inside returns a command line that runs on the host.
func (h *host) inside(words ...string) []string {
	if h.holder == nil {
		return words
	}
	return append([]string{"nsenter", "-t", strconv.Itoa(h.holder.Process.Pid), "-n", "--"}, words...)
}

// drop lets the kernel drop the host's packets, those that it sends, and those that it gets as well, until allow.
func (h *host) drop(ctx context.Context, gets bool) error {
	rules := "add table inet faults\nadd chain inet faults out { type filter hook output priority 0; policy drop; }\n" +
		"add rule inet faults out oif lo accept\n"
	if gets {
		rules += "add chain inet faults in { type filter hook input priority 0; policy drop; }\n" +
			"add rule inet faults in iif lo accept\n"
	}
	return command(ctx, rules, h.inside("nft", "-f", "-")...)
}

func (h *host) allow(ctx context.Context) error {
	return command(ctx, "", h.inside("nft", "delete", "table", "inet", "faults")...)
}

func (h *host) close() {
	if h.holder != nil {
		_ = h.holder.Process.Kill()
		_ = h.holder.Wait()
	}
}

// freePort returns a port of the host that nobody has now. In a namespace all are free.
func (h *host) freePort() (int, error) {
	if h.holder != nil {
		return 8100, nil
	}
	l, err := net.Listen("tcp", h.ip+":0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
