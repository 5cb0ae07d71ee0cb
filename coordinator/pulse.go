package coordinator

import (
	"sync"
	"time"

	elected "rondo/cluster/coordinator"
)

// stuckTurns is how many turns of its loop a leader may miss beside what etcd may take.
const stuckTurns = 12

// pulse tells a leader that is stuck from one that has nothing to do. Its lease tells nothing: it
// is kept alive by another goroutine, so that nobody else would lead. Who does not lead waits for
// as long as it takes.
type pulse struct {
	mu      sync.Mutex
	limit   time.Duration
	leading bool
	last    time.Time // the loop has turned
}

// follow sets the limit for a job: a request to etcd may take until the lease has run out.
func (p *pulse) follow(leaseTTL time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = 2*leaseTTL + stuckTurns*elected.TurnInterval
}

// turned is a turn of the leader's loop, or the end of its leadership.
func (p *pulse) turned(leading bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leading, p.last = leading, time.Now()
}

// beats reports whether the process is not stuck.
func (p *pulse) beats(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.leading || now.Sub(p.last) <= p.limit
}
