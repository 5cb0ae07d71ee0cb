package allreduce

import (
	"errors"
	"fmt"
	"time"
)

// watch is the guard's state. All times count from the ring's epoch.
type watch struct {
	due   time.Duration // when the guard planned its next look
	awake time.Duration // end of this process's last standstill; waits count from there
	beats uint64        // of the successor, so far
	heard time.Duration // when the guard noticed the last of them
}

// guard waits for the first failure, of this rank or a neighbour, and tells both neighbours. It
// runs between collectives too, so that all ranks learn of a failure at once. Meanwhile it sends
// beats to the predecessor and checks the waits of both halves.
func (r *Ring) guard() {
	defer close(r.guarded)
	before, after := r.links.Predecessor, r.links.Successor
	beat := time.NewTicker(r.config.beatInterval())
	defer beat.Stop()
	look := time.NewTimer(r.config.ChunkTimeout)
	defer look.Stop()
	w := watch{due: r.config.ChunkTimeout}
	before.Beat()
	for r.Err() == nil {
		select {
		case <-r.stop:
			if r.Err() == nil {
				return
			}
		case <-r.failed:
		case <-before.Broken():
			r.fail(linkError(before, before.Err()))
		case <-after.Broken():
			r.fail(linkError(after, after.Err()))
		case <-beat.C:
			before.Beat()
			r.listen(&w)
		case <-look.C:
			pause := r.look(&w)
			w.due = r.now() + pause
			look.Reset(pause)
		}
	}
	reason := fmt.Sprintf("at rank %d: %v", r.config.rankAt(int(r.config.Rank)), r.err)
	var abort *AbortError
	if errors.As(r.err, &abort) {
		reason = abort.Reason
	}
	before.Abort(reason)
	after.Abort(reason)
}

// listen records whether the successor has sent a beat since the last call.
func (r *Ring) listen(w *watch) {
	if beats := r.links.Successor.Beats(); beats != w.beats {
		w.beats, w.heard = beats, r.now()
	}
}

// look fails the ring if a neighbour has been silent, or has kept a half waiting, for too long. It
// returns how long the guard may sleep: no wait that begins later can run out before.
func (r *Ring) look(w *watch) time.Duration {
	r.listen(w)
	now := r.now()
	if now-w.due > r.config.beatInterval() {
		w.awake = now // this process stood still, so the others' silence proves nothing
	}
	before, after := r.links.Predecessor, r.links.Successor
	pause := r.config.ChunkTimeout
	if since := time.Duration(r.listening.Load()); since != 0 {
		limit := r.silenceLimit(r.heard.Load())
		pause = min(pause, r.checkWait(since, now, w, limit, func() error {
			return silent(before, limit)
		}))
	}
	if after.Err() == nil { // a successor that left in good order may be silent
		limit := r.silenceLimit(w.beats > 0)
		pause = min(pause, r.checkWait(w.heard, now, w, limit, func() error {
			return silent(after, limit)
		}))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, judged := range []struct {
		link Link
		half *half
		what string
	}{
		{before, &r.receiving, "is alive, but no chunk came for"},
		{after, &r.sending, "is alive, but has not taken a chunk for"},
	} {
		p, since := r.headOf(judged.half), time.Duration(judged.half.since.Load())
		if p == nil || since == 0 {
			continue
		}
		step, chunk := judged.half.at()
		limit := r.waitLimit(&p.plan, step)
		pause = min(pause, r.checkWait(since, now, w, limit, func() error {
			return r.blame(p, judged.link, step, chunk, fmt.Errorf("%s %v", judged.what, limit))
		}))
	}
	return max(pause, 1)
}

// checkWait fails the ring with verdict if the wait has reached its limit, and returns the rest of
// it.
func (r *Ring) checkWait(
	since, now time.Duration, w *watch, limit time.Duration, verdict func() error,
) time.Duration {
	rest := max(since, w.awake) + limit - now
	if rest <= 0 {
		r.fail(verdict())
	}
	return rest
}

// silenceLimit returns how long a neighbour may be silent; it is longer before its first message.
func (r *Ring) silenceLimit(heard bool) time.Duration {
	if heard {
		return r.config.ChunkTimeout
	}
	return r.config.StepTimeout
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
func (r *Ring) waitLimit(s *schedule, step int) time.Duration {
	least := r.config.StepTimeout
	if s.first > 0 && r.config.GatherTimeout > 0 {
		least = r.config.GatherTimeout
	}
	more := least / time.Duration(4*s.last)
	return least + time.Duration(max(0, step-s.first))*more
}

// blame adds to err the neighbour and the place in the collective.
func (r *Ring) blame(p *Pending, link Link, step, chunk int, err error) error {
	var abort *AbortError
	if errors.As(err, &abort) {
		return linkError(link, err)
	}
	s := &p.plan
	if step == carryStep {
		return &PeerError{link.Peer(), fmt.Errorf("carry of collective %d, chunk %d, %v: %w",
			s.header.Sequence, chunk+1, link.Peer(), err)}
	}
	segment := s.received(step)
	if link == Link(r.links.Successor) {
		segment = s.sent(step)
	}
	return &PeerError{link.Peer(), fmt.Errorf(
		"collective %d, ring step %d of %d, chunk %d of %d, %v: %w", s.header.Sequence,
		step-s.first+1, s.last-s.first, chunk+1, s.chunks(segment), link.Peer(), err)}
}

// fail breaks the ring. Only the first failure is kept.
func (r *Ring) fail(err error) {
	r.failing.Do(func() {
		r.err = err
		close(r.failed)
	})
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
