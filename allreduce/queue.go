package allreduce

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// MaxQueued is how many collectives of a ring may be on the way at once.
const MaxQueued = 64

// Pending is a collective that has been started. It is the caller's until [Pending.Wait], and then
// the ring's again.
type Pending struct {
	ring *Ring // nil while nobody has it
	Sum
	plan schedule

	reduced atomic.Int64  // chunks that are in the buffer
	left    int           // halves that are not done with it; under queue.mu
	broken  bool          // whether either of them has given up; under queue.mu
	done    chan struct{} // has a token when both are done
}

// Wait waits until this rank's part of the collective is done. The sum's slices are the caller's
// then. When ctx ends before, the ring breaks. It is called once.
func (p *Pending) Wait(ctx context.Context) error {
	r := p.ring
	if r == nil {
		panic("allreduce: Wait was called twice for one collective")
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		select {
		case <-p.done: // both have come: what is done needs no broken ring
		default:
			r.fail(p.interrupted(ctx))
			<-p.done
		}
	}
	var err error
	if p.broken {
		err = r.Err()
	}
	r.reuse(p)
	return err
}

func (p *Pending) interrupted(ctx context.Context) error {
	return fmt.Errorf("collective %d: %w", p.plan.header.Sequence, context.Cause(ctx))
}

// queue holds the collectives that are on the way, in the order in which they were started. Each
// half of the ring goes through them in that order.
type queue struct {
	mu       sync.Mutex // held to change what follows, and by the guard, which judges by it
	slots    [MaxQueued]*Pending
	started  uint64        // collectives so far
	sequence uint64        // of the last
	room     chan struct{} // has a token of each that is on the way
	spare    []*Pending    // for collectives to come
	shutting bool
}

// start queues a collective. Without ends plan's segments are of one length, as near as may be.
func (r *Ring) start(ctx context.Context, s Sum, plan schedule) (*Pending, error) {
	if err := r.enter(ctx); err != nil {
		return nil, err
	}
	alone := r.config.World == 1 || len(s.Buf) == 0 // the ring's halves have no part in it
	p := r.add(s, plan, !alone)
	switch {
	case p == nil:
		<-r.room
		return nil, r.closedError()
	case alone:
		r.conclude(p)
		return p, nil
	}
	r.sending.rouse()
	r.receiving.rouse()
	return p, nil
}

// add counts a collective, and puts it into the queue if it is for the halves. It returns nil when
// the ring is being closed.
func (r *Ring) add(s Sum, plan schedule, queued bool) *Pending {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shutting {
		return nil
	}
	r.sequence++
	plan.header = Header{
		Generation: r.config.Generation,
		Sequence:   r.sequence,
		Element:    s.Element,
		Total:      len(s.Buf),
	}
	plan.rank, plan.world = int(r.config.Rank), r.config.World
	plan.chunk = ChunkNumbers(len(s.Buf), plan.world, r.config.ChunkBytes, s.Element)
	plan.carry = r.config.ChunkBytes / Float32.Bytes()
	p := r.take()
	p.ring, p.Sum, p.plan, p.broken = r, s, plan, false
	p.reduced.Store(0)
	if !queued {
		return p
	}
	p.left = 2
	r.slots[r.started%MaxQueued] = p
	r.started++
	r.expect(&r.sending, p, true)
	r.expect(&r.receiving, p, plan.receives() || len(s.Carry.In) > 0)
	return p
}

// expect begins a half's wait for a collective that has been queued, if that is the first in its
// queue. A receiver that gets nothing may be listening for what comes after this collective: it is
// spared it.
func (r *Ring) expect(h *half, p *Pending, takesPart bool) {
	switch {
	case h.ended+1 != r.started:
	case takesPart:
		h.wait(r.now(), p.plan.first, 0)
	default:
		h.ended++
		p.left--
	}
}

// enter waits for room in the queue, of a ring that is whole.
func (r *Ring) enter(ctx context.Context) error {
	if err := r.Err(); err != nil {
		return err
	}
	full := r.room
	if ctx.Err() != nil {
		full = nil
	}
	select {
	case full <- struct{}{}:
		return nil
	case <-r.failed:
		return r.Err()
	case <-r.stop:
		return r.closedError()
	case <-ctx.Done():
		r.fail(fmt.Errorf("collective %d: %w", r.sequence+1, context.Cause(ctx)))
		return r.Err()
	}
}

// take returns a Pending that nobody has.
func (q *queue) take() *Pending {
	if n := len(q.spare); n > 0 {
		p := q.spare[n-1]
		q.spare = q.spare[:n-1]
		return p
	}
	return &Pending{done: make(chan struct{}, 1)}
}

// reuse takes a Pending whose collective has ended back.
func (q *queue) reuse(p *Pending) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p.ring, p.Sum, p.plan = nil, Sum{}, schedule{}
	if len(q.spare) < MaxQueued {
		q.spare = append(q.spare, p)
	}
}

// shut lets nothing more into the queue, and reports whether anything is in it.
func (r *Ring) shut() (busy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shutting = true
	return min(r.sending.ended, r.receiving.ended) < r.started
}

// half is what the sender and the receiver have in common: how far in the queue they are, and
// where in the collective there.
type half struct {
	place
	ended uint64        // collectives that it is done with; under queue.mu
	wake  chan struct{} // has a token after a collective has been queued
}

// rouse tells a half that a collective has been queued.
func (h *half) rouse() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// head returns the collective that a half is to work on, nil if there is none.
func (r *Ring) head(h *half) *Pending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.headOf(h)
}

// headOf is head under mu.
func (q *queue) headOf(h *half) *Pending {
	if h.ended == q.started {
		return nil
	}
	return q.slots[h.ended%MaxQueued]
}

// finish ends a half's part of its collective.
func (r *Ring) finish(h *half, p *Pending, complete bool) {
	if r.pass(h, p, complete) {
		r.conclude(p)
	}
}

// pass moves a half behind its collective, and begins its wait for the next one if there is one. It
// reports whether both halves are done with p.
func (r *Ring) pass(h *half, p *Pending, complete bool) (last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !complete {
		p.broken = true
	}
	now := r.now()
	h.proceed(now)
	h.ended++
	if next := r.headOf(h); next != nil {
		h.wait(now, next.plan.first, 0)
	}
	p.left--
	return p.left == 0
}

// conclude hands a collective that is done to who waits for it: not under mu, which that takes
// next.
func (r *Ring) conclude(p *Pending) {
	<-r.room
	p.done <- struct{}{}
}
