package netns

import (
	"context"
	"errors"
	"net"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestAbandoned(t *testing.T) {
	list := "rondo-7-1-switch (id: 3)\nrondo-7-1-lead\nrondo-8-1-switch\nrondo-x-1\nother-9-1\n" +
		"rondo-9\nrondo--1-2\n"
	got := abandoned(list, func(pid int) bool { return pid == 8 })
	if want := []string{"rondo-7-1-switch", "rondo-7-1-lead"}; !slices.Equal(got, want) {
		t.Errorf("abandoned: %q, want %q", got, want)
	}
}

// newNetwork makes a network with two hosts. It skips the test if that is not possible.
func newNetwork(t *testing.T) (n *Network, one, other *Host) {
	t.Helper()
	n, err := New()
	if errors.Is(err, ErrUnavailable) {
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
	if one, err = n.Host("one"); err != nil {
		t.Fatal(err)
	}
	if other, err = n.Host("other"); err != nil {
		t.Fatal(err)
	}
	return n, one, other
}

func TestHosts(t *testing.T) {
	_, one, other := newNetwork(t)
	argv := one.Command([]string{"sh", "-c", "hostname; ip -4 -o address show dev eth0"})
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "one\n") ||
		!strings.Contains(string(out), one.Address+"/24") {
		t.Errorf("%v: %s", err, out)
	}
	if one.Address == other.Address {
		t.Errorf("both hosts are %s", one.Address)
	}
	if err := one.Throttle(10_000, 10_000); err != nil {
		t.Error(err)
	}
	if err := one.Throttle(20_000, 10_000); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if err := other.Deafen(one); err != nil {
		t.Error(err)
	}
	if err := other.Heal(); err != nil {
		t.Error(err)
	}
}

// TestUnplug: a host that is off the network is not reached from another, and is again afterwards.
func TestUnplug(t *testing.T) {
	_, one, other := newNetwork(t)
	// Nobody listens: a host that is reached refuses, and of one that is not nothing is heard.
	refuses := func(patience time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var err error
		if entered := other.Enter(func() {
			_, err = new(net.Dialer).DialContext(ctx, "tcp", one.Address+":9")
		}); entered != nil {
			t.Fatal(entered)
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	}
	if !refuses(time.Minute) {
		t.Fatal("a host is not reached from another")
	}
	if err := one.Unplug(); err != nil {
		t.Fatal(err)
	}
	if refuses(time.Second) {
		t.Error("a host off the network is reached")
	}
	if err := one.Plug(); err != nil {
		t.Fatal(err)
	}
	if !refuses(time.Minute) {
		t.Error("a host that is back is not reached")
	}
}

// TestCounters: one host receives what the other has sent.
func TestCounters(t *testing.T) {
	_, one, other := newNetwork(t)
	before, err := other.Received()
	if err != nil {
		t.Fatal(err)
	}
	argv := one.Command([]string{"bash", "-c",
		`for i in {1..20}; do head -c 1000 /dev/zero >"/dev/udp/$0/9"; done`, other.Address})
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	after, err := other.Received()
	if err != nil {
		t.Fatal(err)
	}
	sent, err := one.Sent()
	if err != nil {
		t.Fatal(err)
	}
	// Other traffic, such as neighbour discovery, is a few packets.
	if got := after - before; got < 20*1000 || got > 30*1000 || sent < 20*1000 {
		t.Errorf("%d bytes received, %d sent, of 20 packets of 1000 bytes", got, sent)
	}
}
