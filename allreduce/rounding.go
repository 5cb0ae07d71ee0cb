package allreduce

import "sync/atomic"

// A number that travels as 16 bits is rounded once by each rank: by the sender in the first ring
// step, and by the receiver, as it adds, in the other steps of a reduce-scatter. A rank only
// forwards a partial sum and needs its own floats there no more, so the 16 bits take the first half
// of their memory. A complete sum is in the buffer as float32, so its 16 bits are kept in separate
// memory (passingChunks).

// short returns the memory of the 16-bit partial sums that this rank forwards. The link may read it
// until the complete sum of the same numbers arrives, which has come through the successor.
func short(floats []float32, e Element) []byte { return Bytes(floats)[:e.Bytes()*len(floats)] }

// residual returns the chunk's range of the residual; nil if the sum has none.
func (p *Pending) residual(h Header) []float32 {
	if p.Residual == nil {
		return nil
	}
	return h.of(p.Residual)
}

// shortBytes returns the most bytes of a chunk.
func (s *schedule) shortBytes() int { return s.chunk * s.header.Element.Bytes() }

// payload returns the bytes to send for chunk h. n chunks of the collective are reduced by then; if
// n > 0, chunk h is the last of them.
func (s *sender) payload(p *Pending, h Header, n int64) []byte {
	floats := h.of(p.Buf)
	switch {
	case h.Element == Float32:
		return Bytes(floats)
	case h.Phase == ReduceScatter && n > 0:
		return short(floats, h.Element)
	}
	if out := s.passing.take(passed{h.Sequence, n}); out != nil {
		return out
	}
	out := s.rounded.take(h.Length*h.Element.Bytes(), p.plan.shortBytes())
	if residual := p.residual(h); residual != nil && n == 0 {
		encodeFeedback(out, floats, residual, h.Element)
	} else {
		encode(out, floats, h.Element) // rounded numbers stay the same
	}
	return out
}

// reductionOf returns how to apply chunk h, the n-th of the collective.
func (r *receiver) reductionOf(p *Pending, h Header, n int64) reduction {
	how := reduction{dst: h.of(p.Buf), phase: h.Phase, element: h.Element}
	if h.Element == Float32 {
		return how
	}
	goesOn := h.Step+1 < p.plan.last
	if h.Phase == ReduceScatter {
		how.rounds, how.residual = true, p.residual(h)
		if how.complete = h.Step+1 == p.plan.world-1; !how.complete {
			how.out = short(how.dst, h.Element)
			return how
		}
	}
	if goesOn {
		how.out = r.passing.put(passed{h.Sequence, n}, h.Length*h.Element.Bytes(),
			p.plan.shortBytes())
	}
	return how
}

// roundedChunks is the sender's memory for payloads that it encodes. The link may read the last
// MaxFlight of them while the next is written.
type roundedChunks struct {
	slots [MaxFlight + 1][]byte
	next  int
}

// take returns n bytes that no link reads. The collective takes at most most bytes at once.
func (c *roundedChunks) take(n, most int) []byte {
	slot := &c.slots[c.next]
	c.next = (c.next + 1) % len(c.slots)
	if cap(*slot) < n {
		*slot = make([]byte, most)
	}
	return (*slot)[:n]
}

// passingAhead is the number of complete chunks that the receiver may store ahead of a sender that
// still sends earlier ones. It covers a segment of few chunks.
const passingAhead = 6

// passed identifies a complete chunk: the n-th of a collective.
type passed struct {
	sequence uint64
	n        int64
}

// passingChunks queues complete chunks in their wire form, from the receiver to the sender, until
// the link has read them. If the queue is full, the sender encodes the chunk from the buffer
// instead.
type passingChunks struct {
	slots [MaxFlight + passingAhead]struct {
		chunk passed
		bytes []byte
		sent  uint64 // value of passingChunks.sent when this one was sent
	}
	filled atomic.Uint64 // slots filled so far, by the receiver
	taken  uint64        // slots taken so far, by the sender
	sent   uint64        // messages sent so far, by the sender
	free   atomic.Uint64 // slots that the link has finished reading
}

// put returns n bytes for a chunk's wire form, or nil if the queue is full. The collective takes at
// most most bytes at once.
func (c *passingChunks) put(chunk passed, n, most int) []byte {
	filled := c.filled.Load()
	if filled-c.free.Load() == uint64(len(c.slots)) {
		return nil
	}
	slot := &c.slots[filled%uint64(len(c.slots))]
	if cap(slot.bytes) < n {
		slot.bytes = make([]byte, most)
	}
	slot.chunk, slot.bytes = chunk, slot.bytes[:n]
	c.filled.Store(filled + 1)
	return slot.bytes
}

// take returns a chunk's wire form, or nil if put had no room for it.
func (c *passingChunks) take(chunk passed) []byte {
	if c.taken == c.filled.Load() {
		return nil
	}
	slot := &c.slots[c.taken%uint64(len(c.slots))]
	if slot.chunk != chunk {
		return nil
	}
	slot.sent = c.sent + 1
	c.taken++
	return slot.bytes
}

// count records that the sender has sent another message.
func (c *passingChunks) count() {
	c.sent++
	free := c.free.Load()
	for free < c.taken && c.sent-c.slots[free%uint64(len(c.slots))].sent >= MaxFlight {
		free++
	}
	c.free.Store(free)
}
