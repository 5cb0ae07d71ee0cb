package allreduce

// roundedChunks is the sender's memory for payloads that are not the buffer's own bytes. A link
// reads the last MaxFlight of them, and the next is written meanwhile.
type roundedChunks struct {
	slots [MaxFlight + 1][]byte
	next  int
}

// payload returns what travels as chunk h of the collective. Each rank rounds each number once: the
// partial sums that it adds to, and the sum that it completes, of which it keeps what it sends. A
// sum that it passes on came rounded, so that it goes as the same bytes.
func (c *roundedChunks) payload(p *Pending, h Header) []byte {
	lo, hi := h.Offset, h.Offset+h.Length
	floats := p.Buf[lo:hi]
	if h.Element == Float32 {
		return Bytes(floats)
	}
	var residual []float32
	if p.Residual != nil {
		residual = p.Residual[lo:hi]
	}
	out := c.take(h.Length * h.Element.Bytes())
	switch {
	case h.Step == p.plan.world-1:
		settle(out, floats, residual, h.Element)
	case h.Phase == ReduceScatter && residual != nil:
		encodeFeedback(out, floats, residual, h.Element)
	default:
		encode(out, floats, h.Element)
	}
	return out
}

// take returns n bytes that no link reads any more.
func (c *roundedChunks) take(n int) []byte {
	slot := &c.slots[c.next]
	c.next = (c.next + 1) % len(c.slots)
	if cap(*slot) < n {
		*slot = make([]byte, n)
	}
	return (*slot)[:n]
}
