package allreduce

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// MaxQueued is the largest number of unfinished collectives of a ring.
const MaxQueued = 64

// Pending is a collective that has been started. The caller may use it until [Pending.Wait]
// returns; then the ring reuses it.
type Pending struct {
	ring *Ring // nil while it is unused
	Sum
	plan schedule

	reduced atomic.Int64  // chunks reduced into the buffer
	left    int           // halves that still work on it; under queue.mu
	broken  bool          // whether a half has given up; under queue.mu
	done    chan struct{} // has a token when both halves are done
}

// Wait waits until this rank's part of the collective is done, and gives the sum's slices back to
// the caller. If ctx ends first, the ring breaks. It is called once.
func (p *Pending) Wait(ctx context.Context) error {
	r := p.ring
	if r == nil {
		panic("allreduce: Wait was called twice for one collective")
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		select {
		case <-p.done: // a collective that is complete does not break the ring
		default:
			r.fail(p.interrupted(ctx))
			<-p.done
		}
	}
	var err error
	if p.broken {
		err = r.Err()
	}
	r.recycle(p)
	return err
}

func (p *Pending) interrupted(ctx context.Context) error {
	return fmt.Errorf("collective %d: %w", p.plan.header.Sequence, context.Cause(ctx))
}

// queue holds the unfinished collectives, in the order of their start. Each half of the ring works
// through them in that order.
type queue struct {
	mu       sync.Mutex // guards the fields below; the guard holds it while it checks waits
	slots    [MaxQueued]*Pending
	started  uint64        // collectives queued since the ring began
	sequence uint64        // number of the last collective
	room     chan struct{} // has a token for each unfinished collective
	spare    []*Pending    // for later collectives
	shutting bool
}

// start queues a collective. If plan.ends is nil, all segments have nearly the same length.
func (r *Ring) start(ctx context.Context, s Sum, plan schedule) (*Pending, error) {
	if err := r.awaitRoom(ctx); err != nil {
		return nil, err
	}
	alone := r.config.World == 1 || len(s.Buf) == 0 // nothing to send or receive
	p := r.add(s, plan, !alone)
	switch {
	case p == nil:
		<-r.room
		return nil, r.closedError()
	case alone:
		r.conclude(p)
		return p, nil
	}
	r.sending.notify()
	r.receiving.notify()
	return p, nil
}

// add numbers a collective and, if queued, appends it to the queue. It returns nil when the ring is
// closing.
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
	p := r.newPending()
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

// expect starts a half's wait for collective p if p is the first in that half's queue. A half that
// takes no part in p skips it, so that the receiver can listen for the next collective.
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

// awaitRoom waits until the queue has room. It fails if the ring is broken or closed.
func (r *Ring) awaitRoom(ctx context.Context) error {
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

// newPending returns an unused Pending.
func (q *queue) newPending() *Pending {
	if n := len(q.spare); n > 0 {
		p := q.spare[n-1]
		q.spare = q.spare[:n-1]
		return p
	}
	return &Pending{done: make(chan struct{}, 1)}
}

// recycle stores an ended Pending for a later collective.
func (q *queue) recycle(p *Pending) {
	q.mu.Lock()
	defer q.mu.Unlock()
	p.ring, p.Sum, p.plan = nil, Sum{}, schedule{}
	if len(q.spare) < MaxQueued {
		q.spare = append(q.spare, p)
	}
}

// shut closes the queue to new collectives, and reports whether any is unfinished.
func (r *Ring) shut() (busy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shutting = true
	return min(r.sending.ended, r.receiving.ended) < r.started
}

// half is the progress of the ring's sender or receiver: its place in the queue, and its position
// in the collective there.
type half struct {
	position
	ended uint64        // collectives that this half has finished; under queue.mu
	wake  chan struct{} // has a token after a collective has been queued
}

// notify tells a half that a collective has been queued.
func (h *half) notify() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// head returns the first unfinished collective of a half, or nil.
func (r *Ring) head(h *half) *Pending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.headOf(h)
}

// headOf is head for a caller that holds mu.
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

// pass moves a half behind its collective p and starts its wait for the next one, if any. It
// reports whether both halves have finished p.
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

// conclude marks p as done for its waiter. The caller must not hold mu: the waiter locks it next.
func (r *Ring) conclude(p *Pending) {
	<-r.room
	p.done <- struct{}{}
}
