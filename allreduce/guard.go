package allreduce

import (
	"errors"
	"fmt"
	"time"
)

// watch is what the guard knows of time, all of it counted from the ring's epoch.
type watch struct {
	due   time.Duration // when the guard meant to look next
	awake time.Duration // no wait counts from before: this process itself stood still until then
	beats uint64        // of the successor
	heard time.Duration // when the guard saw that there were more of them
}

// guard waits for the first failure, here or of a neighbour, and tells both neighbours. It does
// so between collectives too, so that no rank finds out late. Meanwhile it shows the predecessor
// that this rank lives, and judges the waits of both halves.
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
			r.fail(breakOf(before, before.Err()))
		case <-after.Broken():
			r.fail(breakOf(after, after.Err()))
		case <-beat.C:
			before.Beat()
			r.listen(&w)
		case <-look.C:
			pause := r.look(&w)
			w.due = r.now() + pause
			look.Reset(pause)
		}
	}
	reason := fmt.Sprintf("at rank %d: %v", r.config.called(int(r.config.Rank)), r.err)
	var abort *AbortError
	if errors.As(r.err, &abort) {
		reason = abort.Reason
	}
	before.Abort(reason)
	after.Abort(reason)
}

// listen notes whether the successor has given a sign of life since the last time.
func (r *Ring) listen(w *watch) {
	if beats := r.links.Successor.Beats(); beats != w.beats {
		w.beats, w.heard = beats, r.now()
	}
}

// look fails the ring if a neighbour has been silent or has kept a half waiting for too long, and
// returns how long the guard may sleep: no wait that begins later can run out before.
func (r *Ring) look(w *watch) time.Duration {
	r.listen(w)
	now := r.now()
	if now-w.due > r.config.beatInterval() {
		w.awake = now // a rank that was stopped itself has no right to call others silent
	}
	before, after := r.links.Predecessor, r.links.Successor
	pause := r.config.ChunkTimeout
	if since := time.Duration(r.listening.Load()); since != 0 {
		limit := r.silence(r.heard.Load())
		pause = min(pause, r.judge(since, now, w, limit, func() error {
			return silent(before, limit)
		}))
	}
	if after.Err() == nil { // one that has left in good order may be silent
		limit := r.silence(w.beats > 0)
		pause = min(pause, r.judge(w.heard, now, w, limit, func() error {
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
		limit := r.patience(&p.plan, step)
		pause = min(pause, r.judge(since, now, w, limit, func() error {
			return r.blame(p, judged.link, step, chunk, fmt.Errorf("%s %v", judged.what, limit))
		}))
	}
	return max(pause, 1)
}

// judge fails the ring if a wait since then has reached its limit, and returns how much is left.
func (r *Ring) judge(
	since, now time.Duration, w *watch, limit time.Duration, verdict func() error,
) time.Duration {
	rest := max(since, w.awake) + limit - now
	if rest <= 0 {
		r.fail(verdict())
	}
	return rest
}

// silence is how long a neighbour may be silent that has, or has not, been heard before.
func (r *Ring) silence(heard bool) time.Duration {
	if heard {
		return r.config.ChunkTimeout
	}
	return r.config.StepTimeout
}

func silent(link Link, limit time.Duration) error {
	return &PeerError{link.Peer(), fmt.Errorf("%v: silent for %v, not even a sign of life came",
		link.Peer(), limit)}
}

// patience is how long a half waits in a ring step. When a rank is stuck, its neighbour is
// stuck in the earliest step, and each rank further on in one more: with a little more patience
// a step, the rank that knows who is stuck speaks first, and the others hear of it in time. The
// neighbour's wait may begin later than theirs: its receiver may still be at the last step of the
// collective before, while its sender is in this one. So it is more patience than that can take.
func (r *Ring) patience(s *schedule, step int) time.Duration {
	least := r.config.StepTimeout
	if s.first > 0 && r.config.GatherTimeout > 0 {
		least = r.config.GatherTimeout
	}
	more := least / time.Duration(4*s.last)
	return least + time.Duration(max(0, step-s.first))*more
}

// blame adds to err which neighbour it is about, and where in the collective.
func (r *Ring) blame(p *Pending, link Link, step, chunk int, err error) error {
	var abort *AbortError
	if errors.As(err, &abort) {
		return breakOf(link, err)
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

// fail breaks the ring; the first failure counts.
func (r *Ring) fail(err error) {
	r.failing.Do(func() {
		r.err = err
		close(r.failed)
	})
}

// breakOf names the neighbour that broke off. What it passes on is about another rank.
func breakOf(link Link, err error) error {
	var abort *AbortError
	if errors.As(err, &abort) {
		return fmt.Errorf("%v broke off: %w", link.Peer(), err)
	}
	return &PeerError{link.Peer(), fmt.Errorf("%v: %w", link.Peer(), err)}
}
