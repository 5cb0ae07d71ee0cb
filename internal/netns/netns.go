// Package netns makes networks of this machine's own: hosts that are network namespaces, joined by
// a bridge in a namespace of its own, so that the way between any two of them can be cut, slowed
// and counted. Nothing of a network is visible in the machine's own. Tests and benchmarks of real
// processes use it; it needs root, and the commands ip and tc (iproute2), nft and unshare.
//
// It imports nothing of ours.
package netns

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// ErrUnavailable is a machine on which no network can be made.
var ErrUnavailable = errors.New("no network namespaces here")

// MaxHosts is how many hosts a network has at most: they share one /24.
const MaxHosts = 253

// prefix of all namespaces' names; the process id of who made them and a number follow.
const prefix = "rondo-"

// maxNetworks is how many networks a process may have at a time.
const maxNetworks = 1000

// Network is a bridge with hosts on it.
type Network struct {
	prefix string   // of its namespaces' names
	hosts  int      // that were ever added
	names  []string // of the namespaces that are to be removed
}

// Host is a network namespace with one interface; Name is the host name of what runs on it.
type Host struct {
	Name    string
	Address string // IPv4
	// namespace is its name, and port the bridge's interface towards it, in bridge's namespace.
	namespace, port, bridge string
}

// New makes a network without hosts. The error is ErrUnavailable where the machine has none to
// give. What processes that were killed have left of theirs is removed first.
func New() (*Network, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: they need root, and this is user %d", ErrUnavailable,
			os.Geteuid())
	}
	for _, tool := range []string{"ip", "nft", "tc", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: %s is missing; scripts/deps.sh test installs it",
				ErrUnavailable, tool)
		}
	}
	sweep()
	n := &Network{}
	for number := 1; ; number++ {
		n.prefix = fmt.Sprintf("%s%d-%d-", prefix, os.Getpid(), number)
		err := n.add("switch")
		if err == nil {
			break
		}
		if number == maxNetworks || !strings.Contains(err.Error(), "File exists") {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
	for _, args := range [][]string{
		{"link", "add", "br0", "type", "bridge"},
		{"link", "set", "br0", "up"},
	} {
		if err := run("ip", append([]string{"-n", n.prefix + "switch"}, args...)...); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrUnavailable, err), n.Close())
		}
	}
	return n, nil
}

// add makes a namespace that Close removes.
func (n *Network) add(name string) error {
	if err := run("ip", "netns", "add", n.prefix+name); err != nil {
		return err
	}
	n.names = append(n.names, n.prefix+name)
	return nil
}

// Close removes the network. What still runs on its hosts has no network then.
func (n *Network) Close() error {
	var errs []error
	for _, name := range n.names {
		errs = append(errs, run("ip", "netns", "del", name))
	}
	n.names = nil
	return errors.Join(errs...)
}

// sweep removes the namespaces of processes that are no more. It is no error to fail at it: another
// process may be at it too.
func sweep() {
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		return
	}
	for _, name := range abandoned(string(out), running) {
		_ = run("ip", "netns", "del", name)
	}
}

// abandoned returns those of our namespaces in `ip netns list` whose process does not run.
func abandoned(list string, running func(pid int) bool) []string {
	var names []string
	for line := range strings.Lines(list) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		rest, ours := strings.CutPrefix(name, prefix)
		digits, _, more := strings.Cut(rest, "-")
		pid, err := strconv.Atoi(digits)
		if ours && more && err == nil && pid > 0 && !running(pid) {
			names = append(names, name)
		}
	}
	return names
}

func running(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return !errors.Is(err, os.ErrNotExist)
}

// Host adds a host.
func (n *Network) Host(name string) (*Host, error) {
	if n.hosts == MaxHosts {
		return nil, fmt.Errorf("host %s: a network has at most %d", name, MaxHosts)
	}
	n.hosts++
	h := &Host{Name: name, Address: fmt.Sprintf("10.99.0.%d", n.hosts), namespace: n.prefix + name,
		port: fmt.Sprintf("p%d", n.hosts), bridge: n.prefix + "switch"}
	if err := n.add(name); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"link", "add", "eth0", "netns", h.namespace, "type", "veth", "peer", "name", h.port,
			"netns", h.bridge},
		{"-n", h.bridge, "link", "set", h.port, "master", "br0", "up"},
		{"-n", h.namespace, "address", "add", h.Address + "/24", "dev", "eth0"},
		{"-n", h.namespace, "link", "set", "eth0", "up"},
		{"-n", h.namespace, "link", "set", "lo", "up"},
	} {
		if err := run("ip", args...); err != nil {
			return nil, fmt.Errorf("host %s: %w", name, err)
		}
	}
	return h, nil
}

// Command is the command line that runs argv on the host, as the same process; nil is this machine.
func (h *Host) Command(argv []string) []string {
	if h == nil {
		return argv
	}
	return append([]string{"ip", "netns", "exec", h.namespace, "unshare", "--uts", "sh", "-c",
		`hostname "$0" && exec "$@"`, h.Name}, argv...)
}

// Deafen has the host lose all packets that come from another.
func (h *Host) Deafen(from *Host) error {
	for _, rule := range []string{
		"add table ip cut",
		"add chain ip cut in { type filter hook input priority 0 ; }",
		"add rule ip cut in ip saddr " + from.Address + " drop",
	} {
		if err := h.nft(rule); err != nil {
			return err
		}
	}
	return nil
}

// Heal removes what Deafen did.
func (h *Host) Heal() error { return h.nft("delete table ip cut") }

// nft changes the host's packet filter.
func (h *Host) nft(rule string) error {
	return run("ip", append([]string{"netns", "exec", h.namespace, "nft"},
		strings.Fields(rule)...)...)
}

// Throttle limits what the host sends, everything on the wire counted. burst is how many bytes
// may go at once after a while in which fewer went than might have.
func (h *Host) Throttle(kilobits, burst int) error {
	return run("tc", "-n", h.namespace, "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate",
		fmt.Sprintf("%dkbit", kilobits), "burst", strconv.Itoa(burst), "latency", "50ms")
}

// Congestion sets the algorithm by which the host's TCP connections take their share of a link.
func (h *Host) Congestion(algorithm string) error {
	return run("ip", "netns", "exec", h.namespace, "sh", "-c",
		`echo "$0" >/proc/sys/net/ipv4/tcp_congestion_control`, algorithm)
}

// Sent returns how many bytes the host has put on the wire, all headers of Ethernet and above
// counted.
func (h *Host) Sent() (int64, error) { return h.count("tx_bytes") }

// Received returns how many bytes have come to the host, counted as those that it has sent.
func (h *Host) Received() (int64, error) { return h.count("rx_bytes") }

func (h *Host) count(what string) (int64, error) {
	// A file of /sys shows the namespace in which it was mounted: `ip netns exec` mounts its own.
	out, err := output("ip", "netns", "exec", h.namespace, "cat",
		"/sys/class/net/eth0/statistics/"+what)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(out), 10, 64)
}

// run runs a command that must succeed.
func run(name string, args ...string) error {
	_, err := output(name, args...)
	return err
}

func output(name string, args ...string) (string, error) {
	var complaint bytes.Buffer
	command := exec.Command(name, args...)
	command.Stderr = &complaint
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err,
			bytes.TrimSpace(complaint.Bytes()))
	}
	return string(out), nil
}
