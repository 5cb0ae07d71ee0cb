package allreduce

import (
	"fmt"
	"sync/atomic"
	"time"
)

// carryStep turns a ring step into what stands for the hop of a carry ahead of it in a half's
// position, a number below 0, and back.
func carryStep(step int) int { return -1 - step }

// position is the chunk that a half is at, and since when it waits. The guard reads it.
type position struct {
	chunk atomic.Uint64 // step and chunk, 32 bits each
	since atomic.Int64  // queue.now in nanoseconds; 0: not waiting
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
	*queue
	link    Successor
	beat    *time.Ticker
	reduced <-chan struct{} // has a token after a chunk has been reduced, or a hop has arrived
	rounded roundedChunks
	passing passingChunks // from the receiver
	ended   chan struct{} // closed when the sender's goroutine has ended
}

// receiver is the half of a ring that receives and reduces. It listens between collectives too, so
// that heartbeats do not pile up in the link. It holds the first chunk of a collective that this
// rank has not started yet.
type receiver struct {
	*queue
	link    Predecessor
	reduced chan<- struct{}
	passing *passingChunks // to the sender

	listening atomic.Int64 // start of Receive, in queue.now's nanoseconds; 0: not in it
	heard     atomic.Bool  // whether the predecessor has sent anything yet
	held      bool         // whether a result of Receive is held for the next collective
	heldErr   error
}

// run sends this rank's part of each collective until the ring is closed.
func (s *sender) run() {
	defer close(s.ended)
	s.beat = time.NewTicker(s.config.beatInterval())
	defer s.beat.Stop()
	s.sendHeartbeat() // from its first one on, ChunkTimeout limits our silence
	for {
		if p := s.head(&s.sending); p != nil {
			s.finish(&s.sending, p, s.attempt(p, s.sendAll))
			continue
		}
		select {
		case <-s.sending.wake:
		case <-s.beat.C:
			s.sendHeartbeat()
		case <-s.stop:
			if s.head(&s.sending) == nil {
				return
			}
		}
	}
}

// sendHeartbeat ignores errors. The guard sees a broken link, and the next collective sees a
// successor that has left.
func (s *sender) sendHeartbeat() { _ = s.link.Send(s.heartbeat, nil) }

// sendAll sends every chunk as it becomes ready. It returns when the link has stopped reading the
// caller's memory.
func (s *sender) sendAll(p *Pending) error {
	plan := &p.plan
	ready := int64(0) // chunks that must be reduced before the next may be sent
	var step, chunk, hop int
	for step = plan.first; step < plan.last; step++ {
		for ; hop < len(p.Carry.Out) && plan.hopStep(hop) <= step; hop++ {
			if err := s.sendHop(p, hop); err != nil {
				return err
			}
		}
		segment := plan.sent(step)
		for chunk = range plan.chunks(segment) {
			if step > plan.first {
				ready++
			}
			if err := s.await(&p.reduced, ready, step, chunk); err != nil {
				return err
			}
			if err := s.sendChunk(p, plan.at(step, segment, chunk), chunk, ready); err != nil {
				return err
			}
		}
	}
	if plan.header.Element != Float32 && len(p.Carry.Out) == 0 {
		return nil // the link has read all that it was given of the buffer: see short
	}
	s.sending.wait(s.now(), step-1, chunk)
	if err := s.link.Flush(); err != nil {
		return plan.blame(s.link, plan.sent(step-1), step-1, chunk, err)
	}
	return nil
}

// sendHop sends a hop of the carry, after the one before it has arrived, which it passes on.
func (s *sender) sendHop(p *Pending, hop int) error {
	plan, out := &p.plan, p.Carry.Out[hop]
	step := carryStep(plan.hopStep(hop))
	for chunk := range plan.carries(len(out)) {
		if err := s.await(&p.hops, int64(hop), step, chunk); err != nil {
			return err
		}
		h := plan.carried(hop, len(out), chunk)
		if err := s.sendMessage(p, h, Bytes(h.of(out)), step, chunk); err != nil {
			return err
		}
	}
	return nil
}

// sendChunk sends a chunk of a segment. It is the last of ready reduced chunks, if ready > 0.
func (s *sender) sendChunk(p *Pending, h Header, chunk int, ready int64) error {
	if p.plan.ofNodes(h.Step) {
		return s.sendNodes(p, h, h.Step, chunk)
	}
	return s.sendMessage(p, h, s.payload(p, h, ready), h.Step, chunk)
}

func (s *sender) sendMessage(p *Pending, h Header, payload []byte, step, chunk int) error {
	s.sending.wait(s.now(), step, chunk)
	if err := s.link.Send(h, payload); err != nil {
		return p.plan.blame(s.link, p.plan.sent(step), step, chunk, err)
	}
	s.sending.proceed(s.now())
	s.passing.count()
	return nil
}

// await waits until the receiver has counted n chunks or hops of the collective. step and chunk
// name the chunk to be sent after that.
func (s *sender) await(count *atomic.Int64, n int64, step, chunk int) error {
	for count.Load() < n {
		select {
		case <-s.reduced:
		case <-s.failed:
			return s.Err()
		case <-s.beat.C:
			s.sending.wait(s.now(), step, chunk)
			s.sendHeartbeat()
			s.sending.proceed(s.now())
		}
	}
	return nil
}

// run receives and reduces this rank's part of each collective until the ring is closed.
func (r *receiver) run() {
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

func (r *receiver) next(m *Message) error {
	for {
		r.listening.Store(int64(r.now()))
		err := r.link.Receive(m)
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

func (r *receiver) receiveAll(p *Pending, m *Message) error {
	s := &p.plan
	hop := 0
	for step := s.first; step < s.last; step++ {
		for ; hop < len(p.Carry.In) && s.hopStep(hop) <= step; hop++ {
			if err := r.receiveHop(p, m, hop); err != nil {
				return err
			}
			r.count(&p.hops)
		}
		segment := s.received(step)
		for chunk := range s.chunks(segment) {
			if err := r.receiveChunk(p, s.at(step, segment, chunk), m, chunk); err != nil {
				return err
			}
			r.count(&p.reduced)
		}
	}
	return nil
}

// count tells the sender of a chunk or a hop.
func (r *receiver) count(what *atomic.Int64) {
	what.Add(1)
	select {
	case r.reduced <- struct{}{}:
	default:
	}
}

func (r *receiver) receiveHop(p *Pending, m *Message, hop int) error {
	s, in := &p.plan, p.Carry.In[hop]
	for chunk := range s.carries(len(in)) {
		h := s.carried(hop, len(in), chunk)
		if err := r.receive(p, h, m, carryStep(s.hopStep(hop)), chunk); err != nil {
			return err
		}
		combine(h.of(in), m.Pieces, h.Phase, h.Element)
		m.Release()
	}
	return nil
}

func (r *receiver) receiveChunk(p *Pending, h Header, m *Message, chunk int) error {
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
func (r *receiver) receive(p *Pending, want Header, m *Message, step, chunk int) error {
	r.receiving.wait(r.now(), step, chunk)
	err := r.heldErr
	if !r.held {
		err = r.next(m)
	}
	r.held, r.heldErr = false, nil
	if err == nil {
		r.receiving.proceed(r.now())
		if err = check(m, want, p.Carry); err != nil {
			m.Release()
		}
	}
	if err != nil {
		return p.plan.blame(r.link, p.plan.received(step), step, chunk, err)
	}
	return nil
}

// check returns an error unless m is the chunk want, of a collective with a carry.
func check(m *Message, want Header, carry Carry) error {
	if m.Header.Generation != want.Generation {
		return fmt.Errorf("sent a chunk of generation %d, this ring is generation %d",
			m.Header.Generation, want.Generation)
	}
	if m.Header != want {
		return mismatch(m.Header, want, carry)
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

// mismatch returns the error for a chunk got in place of want, in a collective with a carry.
func mismatch(got, want Header, carry Carry) error {
	hop := want.Step
	if got.Phase == Carried {
		hop = got.Step
	}
	carryIn := carry.into(hop)
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
