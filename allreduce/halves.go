package allreduce

import (
	"fmt"
	"sync/atomic"
	"time"
)

// carryStep is the ring step of a carry in a half's place: before the first.
const carryStep = -1

// place is where a half is in its schedule, for the guard: which chunk it waits for, since when.
type place struct {
	chunk atomic.Uint64 // step and chunk, 32 bits each
	since atomic.Int64  // Ring.now in nanoseconds; 0 when it does not wait
	total atomic.Int64  // nanoseconds waited in all
}

// wait begins a wait, or goes on with one that has begun.
func (p *place) wait(now time.Duration, step, chunk int) {
	p.chunk.Store(uint64(uint32(int32(step)))<<32 | uint64(uint32(chunk)))
	p.since.CompareAndSwap(0, int64(now))
}

func (p *place) proceed(now time.Duration) {
	if since := p.since.Swap(0); since != 0 {
		p.total.Add(int64(now) - since)
	}
}

func (p *place) at() (step, chunk int) {
	at := p.chunk.Load()
	return int(int32(at >> 32)), int(uint32(at))
}

// sender is the half of a ring that sends. A chunk of step k+1 may go as soon as the receiver has
// counted the same chunk of step k. Whenever it has nothing to send it sends heartbeats.
type sender struct {
	sending   half
	sendEnded chan struct{} // closed when the sender's goroutine has ended
	beat      *time.Ticker
	rounded   roundedChunks
}

// receiver is the half of a ring that receives and reduces. It listens between collectives too,
// so that heartbeats never pile up in the link; the first chunk of a collective that has not
// begun here stays in its hand.
type receiver struct {
	receiving half
	advanced  chan struct{} // has a token after a collective's count of chunks has grown

	listening atomic.Int64 // since when, as in place; 0 when it does not
	heard     atomic.Bool  // whether anything has ever come
	inHand    bool         // what Receive has returned between collectives
	handErr   error
}

// runSender sends this rank's part of each collective until the ring is closed.
func (r *Ring) runSender() {
	defer close(r.sendEnded)
	r.beat = time.NewTicker(r.config.beatInterval())
	defer r.beat.Stop()
	r.sendHeartbeat() // at once, so that the successor knows from when on it may expect them
	for {
		if p := r.head(&r.sending); p != nil {
			r.finish(&r.sending, p, r.attempt(p, r.sendAll))
			continue
		}
		select {
		case <-r.sending.wake:
		case <-r.beat.C:
			r.sendHeartbeat()
		case <-r.stop:
			if r.head(&r.sending) == nil {
				return
			}
		}
	}
}

// attempt runs a half's part of a collective, unless the ring has failed, and reports whether it is
// complete. What goes wrong breaks the ring.
func (r *Ring) attempt(p *Pending, part func(*Pending) error) bool {
	if r.Err() != nil {
		return false
	}
	err := part(p)
	if err != nil {
		r.fail(err)
	}
	return err == nil
}

// sendHeartbeat leaves errors to whoever needs the link: the guard, if it broke, or the next
// collective, if the successor has left.
func (r *Ring) sendHeartbeat() { _ = r.links.Successor.Send(r.heartbeat, nil) }

// sendAll sends every chunk as it becomes ready, and returns when the link reads none of the
// caller's memory any more.
func (r *Ring) sendAll(p *Pending) error {
	s := &p.plan
	for chunk := range s.carries(len(p.Carry.Out)) {
		h := s.carried(len(p.Carry.Out), chunk)
		if err := r.hand(p, h, Bytes(h.of(p.Carry.Out)), carryStep, chunk); err != nil {
			return err
		}
	}
	ready := int64(0) // how many chunks must have been reduced before the next may go
	var step, chunk int
	for step = s.first; step < s.last; step++ {
		segment := s.sent(step)
		for chunk = range s.chunks(segment) {
			if step > s.first {
				ready++
			}
			if err := r.awaitReduced(p, ready, step, chunk); err != nil {
				return err
			}
			if err := r.handChunk(p, s.at(step, segment, chunk), chunk, ready); err != nil {
				return err
			}
		}
	}
	if s.header.Element != Float32 && len(p.Carry.Out) == 0 {
		return nil // what the buffer had for the link has been read: see short
	}
	r.sending.wait(r.now(), step-1, chunk)
	if err := r.links.Successor.Flush(); err != nil {
		return r.blame(p, r.links.Successor, step-1, chunk, err)
	}
	return nil
}

// handChunk gives the link a chunk of a segment, the last of ready that have been reduced.
func (r *Ring) handChunk(p *Pending, h Header, chunk int, ready int64) error {
	if p.plan.ofNodes(h.Step) {
		return r.handNodes(p, h, h.Step, chunk)
	}
	return r.hand(p, h, r.payload(p, h, ready), h.Step, chunk)
}

// hand gives the link a message.
func (r *Ring) hand(p *Pending, h Header, payload []byte, step, chunk int) error {
	r.sending.wait(r.now(), step, chunk)
	if err := r.links.Successor.Send(h, payload); err != nil {
		return r.blame(p, r.links.Successor, step, chunk, err)
	}
	r.sending.proceed(r.now())
	r.passing.count()
	return nil
}

// awaitReduced waits until n chunks of the collective are reduced. step and chunk say what will be
// sent then.
func (r *Ring) awaitReduced(p *Pending, n int64, step, chunk int) error {
	for p.reduced.Load() < n {
		select {
		case <-r.advanced:
		case <-r.failed:
			return r.Err()
		case <-r.beat.C:
			r.sending.wait(r.now(), step, chunk)
			r.sendHeartbeat()
			r.sending.proceed(r.now())
		}
	}
	return nil
}

// runReceiver receives and reduces this rank's part of each collective until the ring is closed.
func (r *Ring) runReceiver() {
	var m Message
	defer m.Release()
	part := func(p *Pending) error { return r.receiveAll(p, &m) }
	for {
		if p := r.head(&r.receiving); p != nil {
			r.finish(&r.receiving, p, r.attempt(p, part))
			continue
		}
		if !r.inHand {
			r.handErr = r.next(&m)
			r.inHand = true
			continue // a collective may have been queued meanwhile
		}
		select {
		case <-r.receiving.wake:
		case <-r.stop:
			if r.head(&r.receiving) == nil {
				return
			}
		}
	}
}

// next waits for the next message that is no heartbeat.
func (r *Ring) next(m *Message) error {
	for {
		r.listening.Store(int64(r.now()))
		err := r.links.Predecessor.Receive(m)
		r.listening.Store(0)
		if err != nil {
			return err
		}
		r.heard.Store(true)
		if m.Header != r.heartbeat {
			return nil
		}
		m.Release()
	}
}

func (r *Ring) receiveAll(p *Pending, m *Message) error {
	s := &p.plan
	for chunk := range s.carries(len(p.Carry.In)) {
		h := s.carried(len(p.Carry.In), chunk)
		if err := r.receive(p, h, m, carryStep, chunk); err != nil {
			return err
		}
		combine(h.of(p.Carry.In), m.Pieces, h.Phase, h.Element)
		m.Release()
	}
	for step := s.first; step < s.last; step++ {
		segment := s.received(step)
		for chunk := range s.chunks(segment) {
			if err := r.receiveChunk(p, s.at(step, segment, chunk), m, chunk); err != nil {
				return err
			}
			p.reduced.Add(1)
			select {
			case r.advanced <- struct{}{}:
			default:
			}
		}
	}
	return nil
}

// receiveChunk waits for a chunk of a segment and reduces it.
func (r *Ring) receiveChunk(p *Pending, h Header, m *Message, chunk int) error {
	if p.plan.ofNodes(h.Step) {
		return r.receiveNodes(p, h, m, h.Step, chunk)
	}
	if err := r.receive(p, h, m, h.Step, chunk); err != nil {
		return err
	}
	r.reductionOf(p, h, p.reduced.Load()+1).of(m.Pieces)
	m.Release()
	return nil
}

// receive waits for the chunk that is wanted. Whoever has made use of it releases m.
func (r *Ring) receive(p *Pending, want Header, m *Message, step, chunk int) error {
	r.receiving.wait(r.now(), step, chunk)
	err := r.handErr
	if !r.inHand {
		err = r.next(m)
	}
	r.inHand, r.handErr = false, nil
	if err == nil {
		r.receiving.proceed(r.now())
		if err = check(m, want, len(p.Carry.In)); err != nil {
			m.Release()
		}
	}
	if err != nil {
		return r.blame(p, r.links.Predecessor, step, chunk, err)
	}
	return nil
}

// check holds a message to be the chunk that is wanted of a collective that carries carryIn floats
// in.
func check(m *Message, want Header, carryIn int) error {
	if m.Header.Generation != want.Generation {
		return fmt.Errorf("sent a chunk of generation %d, this ring is generation %d",
			m.Header.Generation, want.Generation)
	}
	if m.Header != want {
		return mismatch(m.Header, want, carryIn)
	}
	got := 0
	for _, piece := range m.Pieces {
		got += len(piece)
	}
	if got != want.Element.Bytes()*want.Length {
		return fmt.Errorf("sent %d bytes for {%v}", got, want)
	}
	return nil
}

// mismatch says how what came differs from what is wanted, in a collective that carries carryIn
// floats in.
func mismatch(got, want Header, carryIn int) error {
	sent := carryIn
	switch {
	case got.Sequence != want.Sequence:
	case got.Phase == Carried:
		sent = got.Total
	case want.Phase == Carried && want.Offset == 0:
		sent = 0
	}
	if sent != carryIn {
		return fmt.Errorf("carries %d floats, this rank expects %d", sent, carryIn)
	}
	return fmt.Errorf("sent {%v}, this rank is at {%v}", got, want)
}
