package allreduce

import "sync/atomic"

// What travels as 16 bits a number is rounded once by each rank: by the sender in the first ring
// step, and by the receiver, as it adds, in the others of a reduce-scatter. A partial sum is only
// passed on, and the buffer's floats there are of no use any more: its 16 bits take the first half
// of their place. A sum that is complete is in the buffer as float32, and what passes on of it in
// memory beside that.

// short returns where the 16 bits of numbers lie that this rank only passes on. The link may read
// them until the sum of the same numbers comes, which has been through the successor.
func short(floats []float32, e Element) []byte { return Bytes(floats)[:e.Bytes()*len(floats)] }

// residual returns that of a chunk, nil where the sum has none.
func (p *Pending) residual(h Header) []float32 {
	if p.Residual == nil {
		return nil
	}
	return h.of(p.Residual)
}

// shortBytes is what a chunk takes at most.
func (s *schedule) shortBytes() int { return s.chunk * s.header.Element.Bytes() }

// payload returns what travels as chunk h of the collective. Before it this rank must have reduced
// n chunks: the last of them is this one, if any is.
func (r *Ring) payload(p *Pending, h Header, n int64) []byte {
	floats := h.of(p.Buf)
	switch {
	case h.Element == Float32:
		return Bytes(floats)
	case h.Phase == ReduceScatter && n > 0:
		return short(floats, h.Element)
	}
	if out := r.passing.take(passed{h.Sequence, n}); out != nil {
		return out
	}
	out := r.rounded.take(h.Length*h.Element.Bytes(), p.plan.shortBytes())
	if residual := p.residual(h); residual != nil && n == 0 {
		encodeFeedback(out, floats, residual, h.Element)
	} else {
		encode(out, floats, h.Element) // what is rounded already stays the same
	}
	return out
}

// reductionOf returns what becomes of chunk h when it comes, the n-th of the collective.
func (r *Ring) reductionOf(p *Pending, h Header, n int64) reduction {
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

// roundedChunks is the sender's memory for payloads that are not the buffer's own bytes. A link
// reads the last MaxFlight of them, and the next is written meanwhile.
type roundedChunks struct {
	slots [MaxFlight + 1][]byte
	next  int
}

// take returns n bytes, of most at most, that no link reads any more.
func (c *roundedChunks) take(n, most int) []byte {
	slot := &c.slots[c.next]
	c.next = (c.next + 1) % len(c.slots)
	if cap(*slot) < n {
		*slot = make([]byte, most)
	}
	return (*slot)[:n]
}

// passingAhead is how many chunks the receiver may have ready for a sender that still sends those
// before them: a segment's, where these are few.
const passingAhead = 6

// passed is a chunk that has come complete: the n-th of a collective.
type passed struct {
	sequence uint64
	n        int64
}

// passingChunks are complete chunks as they travel, from when the receiver has them until the link
// has read them, in that order. Where the sender is too far behind there is no room, and it makes
// their bytes from the buffer.
type passingChunks struct {
	slots [MaxFlight + passingAhead]struct {
		chunk passed
		bytes []byte
		sent  uint64 // messages when the sender has sent this one
	}
	filled atomic.Uint64 // slots so far, by the receiver
	taken  uint64        // of these, by the sender
	sent   uint64        // messages so far, by the sender
	free   atomic.Uint64 // slots that no link reads any more
}

// put returns n bytes, of most at most, for what travels of a chunk; nil where there is no room.
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

// take returns what travels of a chunk; nil where there was no room for it.
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

// count notes that the sender has sent another message.
func (c *passingChunks) count() {
	c.sent++
	free := c.free.Load()
	for free < c.taken && c.sent-c.slots[free%uint64(len(c.slots))].sent >= MaxFlight {
		free++
	}
	c.free.Store(free)
}
