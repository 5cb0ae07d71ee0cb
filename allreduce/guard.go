package allreduce

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// guard waits for the first failure, of this rank or a neighbour, and tells both neighbours. It
// runs between collectives too, so that all ranks learn of a failure at once. Meanwhile it sends
// beats to the predecessor and checks the waits of both halves. All times count from the ring's
// epoch.
type guard struct {
	*queue
	receiver *receiver
	before   Predecessor
	after    Successor
	ended    chan struct{} // closed when the guard has ended
	judged   chan struct{} // closed when silent is set, on a broken ring
	silent   struct {
		peer  Peer
		found bool
	}

	due   time.Duration // when the guard planned its next look
	awake time.Duration // end of this process's last standstill; waits count from there
	ticks time.Duration // when the guard sent its last beat
	beats uint64        // of the successor, so far
	heard time.Duration // when the guard noticed the last of them
}

// run guards the ring until it breaks or is closed.
func (g *guard) run() {
	defer close(g.ended)
	beat := time.NewTicker(g.config.beatInterval())
	defer beat.Stop()
	look := time.NewTimer(g.config.ChunkTimeout)
	defer look.Stop()
	g.before.Beat()
	for g.Err() == nil {
		select {
		case <-g.stop:
			if g.Err() == nil {
				return
			}
		case <-g.failed:
		case <-g.before.Broken():
			g.Break(linkError(g.before, g.before.Err()))
		case <-g.after.Broken():
			g.Break(linkError(g.after, g.after.Err()))
		case <-beat.C:
			g.ticks = g.now()
			g.before.Beat()
			g.listen()
		case <-look.C:
			pause := g.look()
			g.due = g.now() + pause
			look.Reset(pause)
		}
	}
	g.silent.peer, g.silent.found = g.nearlySilent()
	close(g.judged)
	reason := fmt.Sprintf("at rank %d: %v", g.config.rankAt(int(g.config.Rank)), g.err)
	var abort *AbortError
	if errors.As(g.err, &abort) {
		reason = abort.Reason
	}
	g.before.Abort(reason)
	g.after.Abort(reason)
}

// listen records whether the successor has sent a beat since the last call.
func (g *guard) listen() {
	if beats := g.after.Beats(); beats != g.beats {
		g.beats, g.heard = beats, g.now()
	}
}

// look fails the ring if a neighbour has been silent, or has kept a half waiting, for too long. It
// returns how long the guard may sleep: no wait that begins later can run out before.
func (g *guard) look() time.Duration {
	g.listen()
	now := g.now()
	if now-g.due > g.config.beatInterval() {
		g.awake = now // this process stood still, so the others' silence proves nothing
	}
	pause := g.config.ChunkTimeout
	if since := time.Duration(g.receiver.listening.Load()); since != 0 {
		limit := g.silenceLimit(g.receiver.heard.Load())
		pause = min(pause, g.checkWait(since, now, limit, func() error {
			return silent(g.before, limit)
		}))
	}
	if g.after.Err() == nil { // a successor that left in good order may be silent
		limit := g.silenceLimit(g.beats > 0)
		pause = min(pause, g.checkWait(g.heard, now, limit, func() error {
			return silent(g.after, limit)
		}))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, judged := range []struct {
		link    Link
		half    *half
		segment func(s *schedule, step int) int
		what    string
	}{
		{g.before, &g.receiving, (*schedule).received, "is alive, but no chunk came for"},
		{g.after, &g.sending, (*schedule).sent, "is alive, but has not taken a chunk for"},
	} {
		p, since := g.headOf(judged.half), time.Duration(judged.half.since.Load())
		if p == nil || since == 0 {
			continue
		}
		step, chunk := judged.half.at()
		limit := g.waitLimit(&p.plan, step)
		pause = min(pause, g.checkWait(since, now, limit, func() error {
			return p.plan.blame(judged.link, judged.segment(&p.plan, step), step, chunk,
				fmt.Errorf("%s %v", judged.what, limit))
		}))
	}
	return max(pause, 1)
}

// nearlySilent returns the neighbour that has been silent for most of ChunkTimeout. Ranks that are
// lost together fall silent together, but the first that is noticed breaks the ring. A rank that
// hears neither neighbour, or stood still itself, accuses nobody.
func (g *guard) nearlySilent() (peer Peer, found bool) {
	g.listen()
	now, most := g.now(), g.config.ChunkTimeout*3/4
	if now-g.ticks > 2*g.config.beatInterval() {
		return Peer{}, false
	}
	since := time.Duration(g.receiver.listening.Load())
	before := since != 0 && g.receiver.heard.Load() && now-max(since, g.awake) >= most
	after := g.after.Err() == nil && g.beats > 0 && now-max(g.heard, g.awake) >= most
	switch {
	case before && after && g.before.Peer() != g.after.Peer():
		return Peer{}, false
	case before:
		return g.before.Peer(), true
	}
	return g.after.Peer(), after
}

// checkWait fails the ring with verdict if the wait has reached its limit, and returns the rest of
// it.
func (g *guard) checkWait(
	since, now, limit time.Duration, verdict func() error,
) time.Duration {
	rest := max(since, g.awake) + limit - now
	if rest <= 0 {
		g.Break(verdict())
	}
	return rest
}

// silenceLimit returns how long a neighbour may be silent; it is longer before its first message.
func (g *guard) silenceLimit(heard bool) time.Duration {
	if heard {
		return g.config.ChunkTimeout
	}
	return g.config.StepTimeout
}

func silent(link Link, limit time.Duration) error {
	return &PeerError{link.Peer(), fmt.Errorf("%v: silent for %v, not even a sign of life came",
		link.Peer(), limit)}
}

// waitLimit returns how long a half waits in a ring step. If a rank is stuck, its neighbour stops
// in the earliest step, and each rank further on one step later. The limit grows with the step, so
// that the neighbour reports the stuck rank first and the others hear of it in time. The
// neighbour's wait may also begin later than theirs, while its receiver is still at the last step
// of the collective before. The growth covers that.
func (g *guard) waitLimit(s *schedule, step int) time.Duration {
	least := g.config.StepTimeout
	if s.first > 0 && g.config.GatherTimeout > 0 {
		least = g.config.GatherTimeout
	}
	if step < 0 {
		step = carryStep(step)
	}
	more := least / time.Duration(4*s.last)
	return least + time.Duration(max(0, step-s.first))*more
}

// blame adds to err the neighbour, and the chunk of a segment that a ring step sends or receives.
func (s *schedule) blame(link Link, segment, step, chunk int, err error) error {
	var abort *AbortError
	switch {
	case errors.As(err, &abort):
		return linkError(link, err)
	case step < 0:
		return &PeerError{link.Peer(), fmt.Errorf("carry of collective %d, chunk %d, %v: %w",
			s.header.Sequence, chunk+1, link.Peer(), err)}
	}
	return &PeerError{link.Peer(), fmt.Errorf(
		"collective %d, ring step %d of %d, chunk %d of %d, %v: %w", s.header.Sequence,
		step-s.first+1, s.last-s.first, chunk+1, s.chunks(segment), link.Peer(), err)}
}

// failure is how a ring broke. Only the first failure is kept.
type failure struct {
	failed  chan struct{} // closed by the first failure, after err is set
	failing sync.Once
	err     error
}

// Break breaks the ring and tells the neighbours why. It does nothing on a broken ring. A rank
// calls it before Close when it gives up a ring that other members may have left already: Close
// then waits for nobody.
func (f *failure) Break(err error) {
	f.failing.Do(func() {
		f.err = err
		close(f.failed)
	})
}

// Broken is closed when the ring breaks, in a collective or between two. Close does not break it.
func (f *failure) Broken() <-chan struct{} { return f.failed }

// Err returns why the ring is broken, or nil.
func (f *failure) Err() error {
	if isClosed(f.failed) {
		return f.err
	}
	return nil
}

// linkError returns the error for a neighbour that broke off. An abort is another rank's failure,
// so it is not a PeerError.
func linkError(link Link, err error) error {
	var abort *AbortError
	if errors.As(err, &abort) {
		return fmt.Errorf("%v broke off: %w", link.Peer(), err)
	}
	return &PeerError{link.Peer(), fmt.Errorf("%v: %w", link.Peer(), err)}
}
