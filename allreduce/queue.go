package allreduce

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// MaxQueued is the largest number of unfinished collectives of a ring.
const MaxQueued = 64

// Pending is a collective that has been started. The caller may use it until [Pending.Wait]
// returns; then the ring reuses it.
type Pending struct {
	queue *queue // nil while it is unused
	Sum
	plan schedule

	reduced atomic.Int64  // chunks reduced into the buffer
	hops    atomic.Int64  // hops of the carry that have arrived
	left    int           // halves that still work on it; under queue.mu
	broken  bool          // whether a half has given up; under queue.mu
	done    chan struct{} // has a token when both halves are done
}

// Wait waits until this rank's part of the collective is done, and gives the sum's slices back to
// the caller. If ctx ends first, the ring breaks. It is called once.
func (p *Pending) Wait(ctx context.Context) error {
	q := p.queue
	if q == nil {
		panic("allreduce: Wait was called twice for one collective")
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		select {
		case <-p.done: // a collective that is complete does not break the ring
		default:
			q.Break(p.interrupted(ctx))
			<-p.done
		}
	}
	var err error
	if p.broken {
		err = q.Err()
	}
	q.recycle(p)
	return err
}

func (p *Pending) interrupted(ctx context.Context) error {
	return fmt.Errorf("collective %d: %w", p.plan.header.Sequence, context.Cause(ctx))
}

// queue holds the unfinished collectives of a ring, in the order of their start, and how far the
// sender and the receiver are in it. Both work through it in that order.
type queue struct {
	failure
	config    Config
	heartbeat Header
	epoch     time.Time     // now counts from here
	room      chan struct{} // has a token for each unfinished collective
	stop      chan struct{} // closed by Close, after the queue takes no more

	mu        sync.Mutex // guards the fields below; the guard holds it while it checks waits
	sending   half
	slots     [MaxQueued]*Pending
	started   uint64     // collectives queued since the ring began
	sequence  uint64     // number of the last collective
	spare     []*Pending // for later collectives
	shutting  bool
	receiving half // not beside sending: each half writes its position for each chunk
}

// now returns the time since the ring began. It is never 0: position.since uses 0 for no wait.
func (q *queue) now() time.Duration { return time.Since(q.epoch) + 1 }

// start queues a collective. If plan.ends is nil, all segments have nearly the same length.
func (q *queue) start(ctx context.Context, s Sum, plan schedule) (*Pending, error) {
	if err := q.awaitRoom(ctx); err != nil {
		return nil, err
	}
	alone := q.config.World == 1 || len(s.Buf) == 0 // nothing to send or receive
	p := q.add(s, plan, !alone)
	switch {
	case p == nil:
		<-q.room
		return nil, q.closedError()
	case alone:
		q.conclude(p)
		return p, nil
	}
	q.sending.notify()
	q.receiving.notify()
	return p, nil
}

// add numbers a collective and, if queued, appends it to the queue. It returns nil when the ring is
// closing.
func (q *queue) add(s Sum, plan schedule, queued bool) *Pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.shutting {
		return nil
	}
	q.sequence++
	plan.header = Header{
		Generation: q.config.Generation,
		Sequence:   q.sequence,
		Element:    s.Element,
		Total:      len(s.Buf),
	}
	plan.rank, plan.world = int(q.config.Rank), q.config.World
	plan.chunk = ChunkNumbers(len(s.Buf), plan.world, q.config.ChunkBytes, s.Element)
	plan.carry = q.config.ChunkBytes / Float32.Bytes()
	p := q.newPending()
	p.queue, p.Sum, p.plan, p.broken = q, s, plan, false
	p.reduced.Store(0)
	p.hops.Store(0)
	if !queued {
		return p
	}
	p.left = 2
	q.slots[q.started%MaxQueued] = p
	q.started++
	q.expect(&q.sending, p, true)
	q.expect(&q.receiving, p, plan.receives() || len(s.Carry.In) > 0)
	return p
}

// expect starts a half's wait for collective p if p is the first in that half's queue. A half that
// takes no part in p skips it, so that the receiver can listen for the next collective.
func (q *queue) expect(h *half, p *Pending, takesPart bool) {
	switch {
	case h.ended+1 != q.started:
	case takesPart:
		h.wait(q.now(), p.plan.first, 0)
	default:
		h.ended++
		p.left--
	}
}

// awaitRoom waits until the queue has room. It fails if the ring is broken or closed.
func (q *queue) awaitRoom(ctx context.Context) error {
	if err := q.Err(); err != nil {
		return err
	}
	full := q.room
	if ctx.Err() != nil {
		full = nil
	}
	select {
	case full <- struct{}{}:
		return nil
	case <-q.failed:
		return q.Err()
	case <-q.stop:
		return q.closedError()
	case <-ctx.Done():
		q.Break(fmt.Errorf("collective %d: %w", q.sequence+1, context.Cause(ctx)))
		return q.Err()
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
	p.queue, p.Sum, p.plan = nil, Sum{}, schedule{}
	if len(q.spare) < MaxQueued {
		q.spare = append(q.spare, p)
	}
}

// shut closes the queue to new collectives, and reports whether any is unfinished.
func (q *queue) shut() (busy bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shutting = true
	return min(q.sending.ended, q.receiving.ended) < q.started
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
func (q *queue) head(h *half) *Pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.headOf(h)
}

// headOf is head for a caller that holds mu.
func (q *queue) headOf(h *half) *Pending {
	if h.ended == q.started {
		return nil
	}
	return q.slots[h.ended%MaxQueued]
}

// attempt runs a half's part of a collective unless the ring has failed, and reports whether the
// part is complete. An error breaks the ring.
func (q *queue) attempt(p *Pending, part func(*Pending) error) bool {
	if q.Err() != nil {
		return false
	}
	err := part(p)
	if err != nil {
		q.Break(err)
	}
	return err == nil
}

// finish ends a half's part of its collective.
func (q *queue) finish(h *half, p *Pending, complete bool) {
	if q.pass(h, p, complete) {
		q.conclude(p)
	}
}

// pass moves a half behind its collective p and starts its wait for the next one, if any. It
// reports whether both halves have finished p.
func (q *queue) pass(h *half, p *Pending, complete bool) (last bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !complete {
		p.broken = true
	}
	now := q.now()
	h.proceed(now)
	h.ended++
	if next := q.headOf(h); next != nil {
		h.wait(now, next.plan.first, 0)
	}
	p.left--
	return p.left == 0
}

// conclude marks p as done for its waiter. The caller must not hold mu: the waiter locks it next.
func (q *queue) conclude(p *Pending) {
	<-q.room
	p.end()
	p.done <- struct{}{}
}

func (q *queue) closedError() error {
	if err := q.Err(); err != nil {
		return err
	}
	return fmt.Errorf("ring of generation %d: %w", q.config.Generation, ErrClosed)
}
