package coordinator

import (
	"testing"
	"time"

	elected "rondo/cluster/coordinator"
)

// TestALeaderMustTurn: a stuck leader is detected; a process that waits to lead, or for etcd, is
// not stuck.
func TestALeaderMustTurn(t *testing.T) {
	var p pulse
	const ttl, late = 10 * time.Second, 10 * time.Minute
	if !p.beats(time.Now().Add(late)) {
		t.Error("a process that has not led yet is stuck")
	}
	p.follow(ttl)
	p.turned(true)
	for after, want := range map[time.Duration]bool{
		0: true, ttl + elected.TurnInterval: true, late: false,
	} {
		if got := p.beats(time.Now().Add(after)); got != want {
			t.Errorf("%v after its last turn a leader is alive: %t", after, got)
		}
	}
	p.turned(false)
	if !p.beats(time.Now().Add(late)) {
		t.Error("one that leads no more is stuck")
	}
}
