package coordinator

import (
	"sync"
	"time"

	elected "rondo/cluster/coordinator"
)

// stuckTurns is the number of turns of its loop that a leader may miss, beside the time for etcd.
const stuckTurns = 12

// pulse detects a leader whose loop is stuck. The leader's lease cannot show that: another
// goroutine keeps it alive, so no other process would take over. A process that does not lead may
// wait forever.
type pulse struct {
	mu      sync.Mutex
	limit   time.Duration
	leading bool
	last    time.Time // last turn of the loop
}

// follow sets the limit for a job. A request to etcd may take until the lease ends.
func (p *pulse) follow(leaseTTL time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = 2*leaseTTL + stuckTurns*elected.TurnInterval
}

// turned records a turn of the leader's loop, or the end of its leadership.
func (p *pulse) turned(leading bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leading, p.last = leading, time.Now()
}

func (p *pulse) beats(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.leading || now.Sub(p.last) <= p.limit
}
