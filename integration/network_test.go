package integration

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
)

// network is a bridge of its own with hosts on it: network namespaces, so that the way between any
// two of them can be cut or slowed. Nothing of it is visible in the machine's own network.
type network struct {
	t      *testing.T
	prefix string // of its namespaces' names
	hosts  int
}

// host is a network namespace with one interface; its name is the host name of what runs on it.
type host struct {
	t         *testing.T
	name      string
	namespace string
	address   string
}

// networks numbers the networks of this process.
var networks atomic.Int64

// newNetwork makes a network, or skips the test where that cannot be done.
func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, tool := range []string{"ip", "nft", "tc", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing; scripts/deps.sh test installs it", tool)
		}
	}
	n := &network{t: t, prefix: fmt.Sprintf("rondo-%d-%d-", os.Getpid(), networks.Add(1))}
	out, err := exec.Command("ip", "netns", "add", n.prefix+"switch").CombinedOutput()
	if err != nil {
		t.Skipf("no network namespace can be made here: %v: %s", err, out)
	}
	t.Cleanup(func() { n.remove("switch") })
	n.ip("-n", n.prefix+"switch", "link", "add", "br0", "type", "bridge")
	n.ip("-n", n.prefix+"switch", "link", "set", "br0", "up")
	return n
}

func (n *network) ip(args ...string) { tool(n.t, "ip", args...) }

func (n *network) remove(name string) {
	if out, err := exec.Command("ip", "netns", "del", n.prefix+name).CombinedOutput(); err != nil {
		n.t.Errorf("ip netns del: %v: %s", err, out)
	}
}

// tool runs a command that must succeed.
func tool(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}

// host adds a host; without a network it is nil, this machine.
func (n *network) host(name string) *host {
	if n == nil {
		return nil
	}
	n.t.Helper()
	n.hosts++
	h := &host{t: n.t, name: name, namespace: n.prefix + name,
		address: fmt.Sprintf("10.99.0.%d", n.hosts)}
	port := fmt.Sprintf("p%d", n.hosts)
	n.ip("netns", "add", h.namespace)
	n.t.Cleanup(func() { n.remove(name) })
	n.ip("link", "add", "eth0", "netns", h.namespace, "type", "veth", "peer", "name", port,
		"netns", n.prefix+"switch")
	n.ip("-n", n.prefix+"switch", "link", "set", port, "master", "br0", "up")
	n.ip("-n", h.namespace, "address", "add", h.address+"/24", "dev", "eth0")
	n.ip("-n", h.namespace, "link", "set", "eth0", "up")
	n.ip("-n", h.namespace, "link", "set", "lo", "up")
	return h
}

// argv is the command line that runs argv on the host, as the same process; nil is this machine.
func (h *host) argv(argv []string) []string {
	if h == nil {
		return argv
	}
	return append([]string{"ip", "netns", "exec", h.namespace, "unshare", "--uts", "sh", "-c",
		`hostname "$0" && exec "$@"`, h.name}, argv...)
}

// nft changes the host's packet filter.
func (h *host) nft(rule string) {
	h.t.Helper()
	tool(h.t, "ip", append([]string{"netns", "exec", h.namespace, "nft"},
		strings.Fields(rule)...)...)
}

// deafen has the host lose all packets that come from another.
func (h *host) deafen(from *host) {
	h.t.Helper()
	h.nft("add table ip cut")
	h.nft("add chain ip cut in { type filter hook input priority 0 ; }")
	h.nft("add rule ip cut in ip saddr " + from.address + " drop")
}

// heal removes what deafen did.
func (h *host) heal() {
	h.t.Helper()
	h.nft("delete table ip cut")
}

// throttle limits what the host sends to so many kilobits a second.
func (h *host) throttle(kilobits int) {
	h.t.Helper()
	tool(h.t, "tc", "-n", h.namespace, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
		fmt.Sprintf("%dkbit", kilobits), "burst", "32kb", "latency", "50ms")
}
