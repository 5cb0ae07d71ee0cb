package integration

import (
	"cmp"
	"context"
	"errors"
	"net"
	"testing"

	"rondo/internal/netns"
)

// network is a [netns.Network] whose failures are the test's.
type network struct {
	t    *testing.T
	real *netns.Network
}

// host is a [netns.Host] whose failures are the test's.
type host struct {
	*netns.Host
	t *testing.T
}

// newNetwork makes a network, or skips the test if it cannot.
func newNetwork(t *testing.T) *network {
	t.Helper()
	n, err := netns.New()
	if errors.Is(err, netns.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return &network{t: t, real: n}
}

// host adds a host; without a network it is nil, this machine.
func (n *network) host(name string) *host {
	if n == nil {
		return nil
	}
	n.t.Helper()
	h, err := n.real.Host(name)
	if err != nil {
		n.t.Fatal(err)
	}
	return &host{h, n.t}
}

// argv is the command line that runs argv on the host, as the same process; nil is this machine.
func (h *host) argv(argv []string) []string {
	if h == nil {
		return argv
	}
	return h.Command(argv)
}

// dial opens a TCP connection of this process from the host.
func (h *host) dial(ctx context.Context, address string) (conn net.Conn, err error) {
	entered := h.Enter(func() { conn, err = new(net.Dialer).DialContext(ctx, "tcp", address) })
	return conn, cmp.Or(entered, err)
}

// deafen has the host lose all packets that come from another.
func (h *host) deafen(from *host) {
	h.t.Helper()
	if err := h.Deafen(from.Host); err != nil {
		h.t.Fatal(err)
	}
}

// heal undoes deafen.
func (h *host) heal() {
	h.t.Helper()
	if err := h.Heal(); err != nil {
		h.t.Fatal(err)
	}
}

// throttle limits the host's outgoing kilobits per second.
func (h *host) throttle(kilobits int) {
	h.t.Helper()
	const burst = 32 << 10
	if err := h.Throttle(kilobits, burst); err != nil {
		h.t.Fatal(err)
	}
}
