package worker

import (
	"context"
	"sync"
	"time"

	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/lm"
)

// pulse tells whether this worker gets on with its part in a ring. While it waits for others it
// cannot be stuck: every wait has a deadline of its own, and those of a ring end sooner than the
// pulse's. What has none is the computing: a kernel that never returns.
type pulse struct {
	mu      sync.Mutex
	limit   time.Duration // from one beat to the next
	first   time.Duration // to the first, which opens the device
	last    time.Time     // beat
	longest time.Duration // from one beat to the next, so far
	due     time.Time     // for the next beat; zero: none is
	told    bool          // that it did not come
}

// A pulse may take several waits for a straggler and one for a new ring, and where steps are long,
// several steps.
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

// begin says that from now on beats are due.
func (p *pulse) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = time.Now()
	p.expect()
}

// beat says that the work gets on.
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

// expect sets when the next beat is due. The lock is held.
func (p *pulse) expect() {
	limit := max(p.limit, pulseGaps*p.longest)
	if p.longest == 0 {
		limit = max(limit, p.first)
	}
	p.due, p.told = p.last.Add(limit), false
}

// rest says that no beat is due.
func (p *pulse) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = time.Time{}
}

// pause says that no beat is due until resume is called: storage has deadlines of its own.
func (p *pulse) pause() (resume func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due.IsZero() {
		return func() {}
	}
	p.due = time.Time{}
	return p.begin
}

// stuck reports whether a beat is overdue, and since when there was none.
func (p *pulse) stuck() (since time.Duration, stuck, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due.IsZero() || time.Now().Before(p.due) {
		return 0, false, false
	}
	first, p.told = !p.told, true
	return time.Since(p.last), true, first
}

// alive answers a liveness probe.
func (w *worker) alive() bool {
	since, stuck, first := w.pulse.stuck()
	if first {
		w.log.Error("this worker is stuck: its device computes without an end, or its process is "+
			"starved; it is to be started anew", "for", since.Round(time.Second))
	}
	return !stuck
}

// beating is an evaluation whose segments are beats: a long one has no step.
type beating struct {
	lm.Evaluation
	pulse *pulse
}

// Fill implements lm.Evaluation.
func (b beating) Fill(
	ctx context.Context, segment int64, first, count int, inputs, targets []int32,
) error {
	b.pulse.beat()
	return b.Evaluation.Fill(ctx, segment, first, count, inputs, targets)
}
