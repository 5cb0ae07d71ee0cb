package integration

import (
	"fmt"
	"testing"
)

// TestPartitions is the matrix of faults between machines. Each process of the job is on a host of
// its own.
func TestPartitions(t *testing.T) {
	runOutside(t, []outside{
		{"worker cut from etcd but not from the ring",
			"it stops by its own clock; the others go on, and it comes back", cutFromEtcd},
		{"ring link cut one way", "one end of it is evicted within the chunk timeout; the others " +
			"go on, and it comes back when the link does",
			func(t *testing.T) { cutLink(t, false) }},
		{"ring link cut both ways", "the same", func(t *testing.T) { cutLink(t, true) }},
		{"slow link", "the worker before it is named, with the network as the cause", slowLink},
	})
}

func cutFromEtcd(t *testing.T) {
	network := newNetwork(t)
	r := newRig(t, rigConfig{network: network})
	worker := r.of(1)
	on := r.hosts[worker]
	on.deafen(r.etcd.on[0])
	r.untilRing(2, fmt.Sprintf("host %s, pid %d", on.Name, worker.pid()))
	r.untilMore(10)
	on.heal()
	r.untilRing(3, "more workers have appeared")
	r.untilMore(10)
	r.stop()
	if !hasAll(worker.stderr.String(), []string{"lease in etcd has passed"}) {
		t.Errorf("the worker does not say why it stopped:\n%s", worker.stderr)
	}
}

func cutLink(t *testing.T, bothWays bool) {
	r := newRig(t, rigConfig{network: newNetwork(t)})
	one, other := r.hosts[r.of(0)], r.hosts[r.of(1)]
	other.deafen(one)
	if bothWays {
		one.deafen(other)
	}
	ring := r.untilRing(2, "says")
	t.Logf("event: %s", ring.text("reason"))
	r.untilMore(5)
	other.heal()
	if bothWays {
		one.heal()
	}
	r.untilRing(3, "more workers have appeared")
	r.untilMore(30)
	r.stop()
}

func slowLink(t *testing.T) {
	// A gradient that no buffer of the link holds. The link takes seconds for it, so that even on a
	// busy machine the network is later than any worker's own work.
	model := []string{"--hidden", "256"}
	r := newRig(t, rigConfig{network: newNetwork(t), allow: allowance{reference: model},
		flags: append(model, "--check-every", "2", "--step-timeout", "10s")})
	slow := r.of(1)
	r.hosts[slow].throttle(5_000)
	notice := r.untilNotice("rank 1", "(network)")
	t.Logf("event: %s", notice.text("text"))
	r.untilMore(3)
	if rings := named(r.stop(), "generation"); len(rings) != 1 {
		t.Errorf("a slow link broke the ring: %v", rings)
	}
}
