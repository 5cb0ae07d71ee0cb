// Package netns makes test networks on one machine. Hosts are network namespaces, joined by a
// bridge in another namespace, so that the path between any two hosts can be cut, slowed and
// counted. Nothing of it is visible in the machine's own network. Tests and benchmarks of real
// processes use it. It needs root and the commands ip and tc (iproute2), nft and unshare.
//
// It imports nothing of this module.
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

// ErrUnavailable says that no network can be made on this machine.
var ErrUnavailable = errors.New("no network namespaces here")

// MaxHosts is the largest number of hosts in a network: they share one /24.
const MaxHosts = 253

// prefix begins the names of all namespaces. The creator's process id and a number follow.
const prefix = "rondo-"

// maxNetworks is the largest number of networks of a process at a time.
const maxNetworks = 1000

// Network is a bridge with hosts on it.
type Network struct {
	prefix string   // of its namespaces' names
	hosts  int      // number of hosts ever added
	names  []string // namespaces to remove
}

// Host is a network namespace with one interface. Name is the host name that its processes see.
type Host struct {
	Name    string
	Address string // IPv4
	// port is the bridge's interface to this host, in the namespace bridge.
	namespace, port, bridge string
}

// New makes a network without hosts. First it removes the namespaces of killed processes. The error
// wraps ErrUnavailable if the machine cannot have networks.
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

// add makes a namespace, which Close removes.
func (n *Network) add(name string) error {
	if err := run("ip", "netns", "add", n.prefix+name); err != nil {
		return err
	}
	n.names = append(n.names, n.prefix+name)
	return nil
}

// Close removes the network. Processes on its hosts then have no network.
func (n *Network) Close() error {
	var errs []error
	for _, name := range n.names {
		errs = append(errs, run("ip", "netns", "del", name))
	}
	n.names = nil
	return errors.Join(errs...)
}

// sweep removes the namespaces of dead processes. It ignores errors, because another process may
// sweep at the same time.
func sweep() {
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		return
	}
	for _, name := range abandoned(string(out), running) {
		_ = run("ip", "netns", "del", name)
	}
}

// abandoned returns the namespaces in the output of `ip netns list` whose process is dead.
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

// Command returns the command line that runs argv on the host, in the same process. On a nil Host
// it returns argv.
func (h *Host) Command(argv []string) []string {
	if h == nil {
		return argv
	}
	return append([]string{"ip", "netns", "exec", h.namespace, "unshare", "--uts", "sh", "-c",
		`hostname "$0" && exec "$@"`, h.Name}, argv...)
}

// Deafen makes the host drop all packets from another host.
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

// Heal undoes Deafen.
func (h *Host) Heal() error { return h.nft("delete table ip cut") }

// Unplug takes the host off the network. Its processes go on.
func (h *Host) Unplug() error { return h.carrier("down") }

// Plug undoes Unplug.
func (h *Host) Plug() error { return h.carrier("up") }

func (h *Host) carrier(state string) error {
	return run("ip", "-n", h.bridge, "link", "set", h.port, state)
}

// nft changes the host's packet filter.
func (h *Host) nft(rule string) error {
	return run("ip", append([]string{"netns", "exec", h.namespace, "nft"},
		strings.Fields(rule)...)...)
}

// Throttle limits the host's sending rate, including all headers. burst is the number of bytes that
// may be sent at once after a pause.
func (h *Host) Throttle(kilobits, burst int) error {
	return run("tc", "-n", h.namespace, "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate",
		fmt.Sprintf("%dkbit", kilobits), "burst", strconv.Itoa(burst), "latency", "50ms")
}

// Congestion sets the congestion control algorithm of the host's TCP connections.
func (h *Host) Congestion(algorithm string) error {
	return run("ip", "netns", "exec", h.namespace, "sh", "-c",
		`echo "$0" >/proc/sys/net/ipv4/tcp_congestion_control`, algorithm)
}

// Sent returns the number of bytes that the host has sent, including Ethernet headers.
func (h *Host) Sent() (int64, error) { return h.count("tx_bytes") }

// Received returns the number of bytes that the host has received, including Ethernet headers.
func (h *Host) Received() (int64, error) { return h.count("rx_bytes") }

func (h *Host) count(what string) (int64, error) {
	// /sys shows the namespace in which it was mounted; `ip netns exec` mounts its own.
	out, err := output("ip", "netns", "exec", h.namespace, "cat",
		"/sys/class/net/eth0/statistics/"+what)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(out), 10, 64)
}

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
