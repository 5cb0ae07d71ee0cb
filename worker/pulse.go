package worker

import (
	"sync"
	"time"

	rondov1 "rondo/proto/rondo/v1"
)

// pulse detects whether this worker's part in a ring is stuck. Waiting for other workers is not:
// each such wait has its own deadline, shorter than the pulse's. Only computing has none: a kernel
// may never return.
type pulse struct {
	mu       sync.Mutex
	limit    time.Duration // between two beats
	first    time.Duration // until the first beat, because the device must be opened
	last     time.Time     // time of the last beat
	longest  time.Duration // longest time between two beats so far
	due      time.Time     // deadline of the next beat; zero: none
	reported bool          // stuck has reported the missed beat
}

// The limit between two beats covers several waits for a straggler and one for a new ring. Where
// steps are long, it covers several of the longest gaps.
const (
	pulseSteps = 4
	pulseGaps  = 10
)

// follow sets the limits from the job's deadlines.
func (p *pulse) follow(spec *rondov1.JobSpec) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = pulseSteps*spec.StepTimeout.AsDuration() + spec.RegroupTimeout.AsDuration()
	p.first = p.limit + spec.JoinTimeout.AsDuration()
}

// begin starts to expect beats.
func (p *pulse) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
	p.expect()
}

// beat records progress.
func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due.IsZero() {
		return
	}
	now := time.Now()
	p.longest, p.last = max(p.longest, now.Sub(p.last)), now
	p.expect()
}

// expect sets the deadline of the next beat. The lock is held.
func (p *pulse) expect() {
	limit := max(p.limit, pulseGaps*p.longest)
	if p.longest == 0 {
		limit = max(limit, p.first)
	}
	p.due, p.reported = p.last.Add(limit), false
}

// rest stops expecting beats.
func (p *pulse) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = time.Time{}
}

// pause stops expecting beats until resume is called. It is for storage, which has its own
// deadlines.
func (p *pulse) pause() (resume func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due.IsZero() {
		return func() {}
	}
	p.due = time.Time{}
	return p.begin
}

// stuck reports whether a beat is overdue, the time since the last beat, and whether this is the
// first call to report it.
func (p *pulse) stuck() (since time.Duration, stuck, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due.IsZero() || time.Now().Before(p.due) {
		return 0, false, false
	}
	first, p.reported = !p.reported, true
	return time.Since(p.last), true, first
}

// alive answers a liveness probe.
func (w *worker) alive() bool {
	since, stuck, first := w.pulse.stuck()
	if first {
		w.log.Error("this worker is stuck: its device does not finish, or its process gets no CPU "+
			"time; restart it", "for", since.Round(time.Second))
	}
	return !stuck
}
