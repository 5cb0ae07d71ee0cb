package allreduce

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// place is where a half is in its schedule, for the watch: which chunk it waits for, since when.
type place struct {
	chunk atomic.Uint64 // step and chunk, 32 bits each
	since atomic.Int64  // nanoseconds from the ring's epoch, from 1; 0 when it does not wait
}

func (p *place) wait(since time.Duration, step, chunk int) {
	p.chunk.Store(uint64(step)<<32 | uint64(uint32(chunk)))
	p.since.Store(max(1, int64(since)))
}

func (p *place) proceed() { p.since.Store(0) }

// sender is the half of a ring that sends. It needs no queue: its schedule is fixed, and a chunk
// of step k+1 may go as soon as the receiver has counted the same chunk of step k.
type sender struct {
	sendStart chan []float32
	sending   place
}

// receiver is the half of a ring that receives and reduces.
type receiver struct {
	receiveStart chan []float32
	receiving    place
	reduced      atomic.Int64  // chunks of this collective that are in the buffer
	advanced     chan struct{} // has a token after reduced has grown
}

// runSender sends this rank's part of each collective until the ring is closed.
func (r *Ring) runSender() {
	for {
		select {
		case buf := <-r.sendStart:
			if err := r.sendAll(buf); err != nil {
				r.fail(err)
			}
			r.sending.proceed()
			r.finished <- struct{}{}
		case <-r.stop:
			return
		}
	}
}

// sendAll sends every chunk as it becomes ready, and returns when the link reads buf no more.
func (r *Ring) sendAll(buf []float32) error {
	s := &r.plan
	ready := int64(0) // how many chunks must have been reduced before the next may go
	var step, chunk int
	for step = s.first; step < s.last; step++ {
		segment := s.sent(step)
		for chunk = range s.chunks(segment) {
			if step > s.first {
				ready++
			}
			if !r.awaitReduced(ready) {
				return nil // the ring has failed, and whoever failed it has said why
			}
			h := s.at(step, segment, chunk)
			r.sending.wait(time.Since(r.epoch), step, chunk)
			err := r.links.Successor.Send(h, buf[h.Offset:h.Offset+h.Length])
			if err != nil {
				return r.blame(r.links.Successor, step, chunk, err)
			}
			r.sending.proceed()
		}
	}
	r.sending.wait(time.Since(r.epoch), step-1, chunk)
	if err := r.links.Successor.Flush(); err != nil {
		return r.blame(r.links.Successor, step-1, chunk, err)
	}
	return nil
}

// awaitReduced waits until n chunks of this collective are reduced, and reports whether they are.
func (r *Ring) awaitReduced(n int64) bool {
	for r.reduced.Load() < n {
		select {
		case <-r.advanced:
		case <-r.failed:
			return false
		}
	}
	return true
}

// runReceiver receives and reduces this rank's part of each collective until the ring is closed.
func (r *Ring) runReceiver() {
	var m Message
	for {
		select {
		case buf := <-r.receiveStart:
			if err := r.receiveAll(buf, &m); err != nil {
				r.fail(err)
			}
			r.receiving.proceed()
			r.finished <- struct{}{}
		case <-r.stop:
			return
		}
	}
}

func (r *Ring) receiveAll(buf []float32, m *Message) error {
	s := &r.plan
	for step := s.first; step < s.last; step++ {
		segment := s.received(step)
		for chunk := range s.chunks(segment) {
			r.receiving.wait(time.Since(r.epoch), step, chunk)
			err := r.links.Predecessor.Receive(m)
			if err == nil {
				r.receiving.proceed()
				err = r.reduce(buf, m, s.at(step, segment, chunk))
				m.Release()
			}
			if err != nil {
				return r.blame(r.links.Predecessor, step, chunk, err)
			}
			r.reduced.Add(1)
			select {
			case r.advanced <- struct{}{}:
			default:
			}
		}
	}
	return nil
}

// reduce adds the message to buf, or copies it there, if it is the chunk that is wanted.
func (r *Ring) reduce(buf []float32, m *Message, want Header) error {
	if m.Header.Generation != want.Generation {
		return fmt.Errorf("sent a chunk of generation %d, this ring is generation %d",
			m.Header.Generation, want.Generation)
	}
	if m.Header != want {
		return fmt.Errorf("sent {%v}, this rank is at {%v}", m.Header, want)
	}
	got := 0
	for _, piece := range m.Pieces {
		got += len(piece)
	}
	if got != 4*want.Length {
		return fmt.Errorf("sent %d bytes for {%v}", got, want)
	}
	combine(buf[want.Offset:want.Offset+want.Length], m.Pieces, want.Phase)
	return nil
}

// watch waits for both halves, and fails the ring when ctx ends or a neighbour takes too long.
func (r *Ring) watch(ctx context.Context) {
	r.timer.Reset(r.config.ChunkTimeout)
	defer r.timer.Stop()
	done := ctx.Done()
	for running := 2; running > 0; {
		select {
		case <-r.finished:
			running--
		case <-r.timer.C:
			r.timer.Reset(r.checkProgress())
		case <-done:
			done = nil
			r.fail(fmt.Errorf("collective %d: %w", r.sequence, context.Cause(ctx)))
		}
	}
}

// checkProgress fails the ring if a half has waited too long for its neighbour, and returns how
// long the watch may sleep.
func (r *Ring) checkProgress() time.Duration {
	now := time.Since(r.epoch)
	received := r.remaining(&r.receiving, now)
	sent := r.remaining(&r.sending, now)
	switch {
	case received <= 0 && received <= sent:
		r.failLate(r.links.Predecessor, &r.receiving, "no chunk for")
	case sent <= 0:
		r.failLate(r.links.Successor, &r.sending, "chunk not taken for")
	default:
		return min(received, sent)
	}
	return r.config.ChunkTimeout
}

// remaining is how much longer a half may wait.
func (r *Ring) remaining(p *place, now time.Duration) time.Duration {
	step := int(p.chunk.Load() >> 32)
	since := time.Duration(p.since.Load())
	if since == 0 {
		return r.config.ChunkTimeout
	}
	return r.patience(step) - (now - since)
}

// patience is how long a half waits in a ring step. When a rank falls silent, its neighbour is
// stuck in the earliest step, and each rank further on in one more: with a little more patience
// a step, the rank that knows who is silent speaks first, and the others hear of it in time.
func (r *Ring) patience(step int) time.Duration {
	more := min(blamePause, r.config.ChunkTimeout/time.Duration(4*r.plan.last))
	return r.config.ChunkTimeout + time.Duration(step-r.plan.first)*more
}

// blamePause is time enough for a failure to be told to a neighbour.
const blamePause = 100 * time.Millisecond

func (r *Ring) failLate(link Link, p *place, what string) {
	at := p.chunk.Load()
	step, chunk := int(at>>32), int(uint32(at))
	r.fail(r.blame(link, step, chunk, fmt.Errorf("%s %v", what, r.patience(step))))
}

// blame adds to err which neighbour it is about, and where in the collective.
func (r *Ring) blame(link Link, step, chunk int, err error) error {
	var abort *AbortError
	if errors.As(err, &abort) {
		return breakOf(link, err)
	}
	s := &r.plan
	segment := s.received(step)
	if link == Link(r.links.Successor) {
		segment = s.sent(step)
	}
	return &PeerError{link.Peer(), fmt.Errorf("ring step %d of %d, chunk %d of %d, %v: %w",
		step-s.first+1, s.last-s.first, chunk+1, s.chunks(segment), link.Peer(), err)}
}

// fail breaks the ring; the first failure counts.
func (r *Ring) fail(err error) {
	r.failing.Do(func() {
		r.err = err
		close(r.failed)
	})
}

// guard waits for the first failure, here or of a neighbour, and tells both neighbours. It does
// so between collectives too, so that no rank finds out late.
func (r *Ring) guard() {
	before, after := r.links.Predecessor, r.links.Successor
	select {
	case <-r.stop:
		return
	case <-r.failed:
	case <-before.Broken():
		r.fail(breakOf(before, before.Err()))
	case <-after.Broken():
		r.fail(breakOf(after, after.Err()))
	}
	reason := fmt.Sprintf("at rank %d: %v", r.config.Rank, r.err)
	var abort *AbortError
	if errors.As(r.err, &abort) {
		reason = abort.Reason
	}
	before.Abort(reason)
	after.Abort(reason)
}

// breakOf names the neighbour that broke off. What it passes on is about another rank.
func breakOf(link Link, err error) error {
	var abort *AbortError
	if errors.As(err, &abort) {
		return fmt.Errorf("%v broke off: %w", link.Peer(), err)
	}
	return &PeerError{link.Peer(), fmt.Errorf("%v: %w", link.Peer(), err)}
}
