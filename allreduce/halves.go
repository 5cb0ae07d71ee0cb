package allreduce

import (
	"fmt"
	"sync/atomic"
	"time"
)

// carryStep stands for the carry in a half's position. The carry comes before ring step 0.
const carryStep = -1

// position is the chunk that a half is at, and since when it waits. The guard reads it.
type position struct {
	chunk atomic.Uint64 // step and chunk, 32 bits each
	since atomic.Int64  // Ring.now in nanoseconds; 0: not waiting
	total atomic.Int64  // nanoseconds waited since the ring began
}

// wait begins a wait, or moves one that has begun to another chunk.
func (p *position) wait(now time.Duration, step, chunk int) {
	p.chunk.Store(uint64(uint32(int32(step)))<<32 | uint64(uint32(chunk)))
	p.since.CompareAndSwap(0, int64(now))
}

func (p *position) proceed(now time.Duration) {
	if since := p.since.Swap(0); since != 0 {
		p.total.Add(int64(now) - since)
	}
}

func (p *position) at() (step, chunk int) {
	at := p.chunk.Load()
	return int(int32(at >> 32)), int(uint32(at))
}

// sender is the sending half of a ring. It may send a chunk of step k+1 as soon as the receiver has
// counted the same chunk of step k. It sends heartbeats while it has no chunk to send.
type sender struct {
	sending   half
	sendEnded chan struct{} // closed when the sender's goroutine has ended
	beat      *time.Ticker
	rounded   roundedChunks
}

// receiver is the half of a ring that receives and reduces. It listens between collectives too, so
// that heartbeats do not pile up in the link. It holds the first chunk of a collective that this
// rank has not started yet.
type receiver struct {
	receiving half
	advanced  chan struct{} // has a token after a chunk has been reduced

	listening atomic.Int64 // start of Receive, in Ring.now's nanoseconds; 0: not in it
	heard     atomic.Bool  // whether the predecessor has sent anything yet
	held      bool         // whether a result of Receive is held for the next collective
	heldErr   error
}

// runSender sends this rank's part of each collective until the ring is closed.
func (r *Ring) runSender() {
	defer close(r.sendEnded)
	r.beat = time.NewTicker(r.config.beatInterval())
	defer r.beat.Stop()
	r.sendHeartbeat() // from its first one on, ChunkTimeout limits our silence
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

// attempt runs a half's part of a collective unless the ring has failed, and reports whether the
// part is complete. An error breaks the ring.
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

// sendHeartbeat ignores errors. The guard sees a broken link, and the next collective sees a
// successor that has left.
func (r *Ring) sendHeartbeat() { _ = r.links.Successor.Send(r.heartbeat, nil) }

// sendAll sends every chunk as it becomes ready. It returns when the link has stopped reading the
// caller's memory.
func (r *Ring) sendAll(p *Pending) error {
	s := &p.plan
	for chunk := range s.carries(len(p.Carry.Out)) {
		h := s.carried(len(p.Carry.Out), chunk)
		if err := r.sendMessage(p, h, Bytes(h.of(p.Carry.Out)), carryStep, chunk); err != nil {
			return err
		}
	}
	ready := int64(0) // chunks that must be reduced before the next may be sent
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
			if err := r.sendChunk(p, s.at(step, segment, chunk), chunk, ready); err != nil {
				return err
			}
		}
	}
	if s.header.Element != Float32 && len(p.Carry.Out) == 0 {
		return nil // the link has read all that it was given of the buffer: see short
	}
	r.sending.wait(r.now(), step-1, chunk)
	if err := r.links.Successor.Flush(); err != nil {
		return r.blame(p, r.links.Successor, step-1, chunk, err)
	}
	return nil
}

// sendChunk sends a chunk of a segment. It is the last of ready reduced chunks, if ready > 0.
func (r *Ring) sendChunk(p *Pending, h Header, chunk int, ready int64) error {
	if p.plan.ofNodes(h.Step) {
		return r.sendNodes(p, h, h.Step, chunk)
	}
	return r.sendMessage(p, h, r.payload(p, h, ready), h.Step, chunk)
}

func (r *Ring) sendMessage(p *Pending, h Header, payload []byte, step, chunk int) error {
	r.sending.wait(r.now(), step, chunk)
	if err := r.links.Successor.Send(h, payload); err != nil {
		return r.blame(p, r.links.Successor, step, chunk, err)
	}
	r.sending.proceed(r.now())
	r.passing.count()
	return nil
}

// awaitReduced waits until n chunks of the collective are reduced. step and chunk name the chunk to
// be sent after that.
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
		if !r.held {
			r.heldErr = r.next(&m)
			r.held = true
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

// receive waits for the chunk want. The caller releases m.
func (r *Ring) receive(p *Pending, want Header, m *Message, step, chunk int) error {
	r.receiving.wait(r.now(), step, chunk)
	err := r.heldErr
	if !r.held {
		err = r.next(m)
	}
	r.held, r.heldErr = false, nil
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

// check returns an error unless m is the chunk want, of a collective that carries carryIn floats
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

// mismatch returns the error for a chunk got in place of want, in a collective that carries carryIn
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
