package allreduce

import (
	"testing"
	"time"
)

// TestSleeperAccusesNobody: a rank whose process was stopped for longer than its timeouts gives its
// neighbours their full time again. A rank that looked on time accuses silent neighbours.
func TestSleeperAccusesNobody(t *testing.T) {
	const timeout = 5 * time.Second
	for _, slept := range []bool{true, false} {
		before, after := Peer{Rank: 2, Address: "host-c"}, Peer{Rank: 1, Address: "host-b"}
		self := Peer{Rank: 0, Address: "host-a"}
		successor, _ := Pipe(self, after)
		_, predecessor := Pipe(before, self)
		q := &queue{
			failure: failure{failed: make(chan struct{})},
			config:  Config{World: 3, ChunkTimeout: timeout, StepTimeout: 2 * timeout},
			epoch:   time.Now().Add(-time.Minute),
		}
		g := &guard{queue: q, receiver: &receiver{}, before: predecessor, after: successor,
			due: q.now()}
		g.receiver.listening.Store(1) // nothing has arrived since the ring began, a minute ago
		g.receiver.heard.Store(true)
		if slept {
			g.due -= 30 * time.Second
		}
		g.ticks = g.due - timeout/8 // the last beat
		if peer, found := g.nearlySilent(); found == slept || found && peer != before {
			t.Errorf("slept=%v: %v counts as silent: %v", slept, peer, found)
		}
		pause := g.look()
		if accuses := q.Err() != nil; accuses == slept {
			t.Errorf("slept=%v: %v", slept, q.Err())
		}
		if slept && pause != timeout {
			t.Errorf("it looks again after %v, want %v", pause, timeout)
		}
	}
}
