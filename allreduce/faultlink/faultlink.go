// Package faultlink disturbs the links of a ring, for rehearsals and tests: it drops, duplicates,
// corrupts or delays messages, or calls a function of the caller's when one passes.
//
// It makes no decision itself: a [Hook] sees every message and chooses a [Fault]. It works over any
// link, and imports only allreduce.
package faultlink

import (
	"slices"
	"sync"
	"time"

	"rondo/allreduce"
)

// Direction is a message's direction, seen from this rank.
type Direction int

const (
	// ToSuccessor is a chunk or heartbeat that this rank sends.
	ToSuccessor Direction = iota
	// FromPredecessor is a chunk or heartbeat that this rank receives.
	FromPredecessor
	// ToPredecessor is a beat to the predecessor. It can be dropped but not altered.
	ToPredecessor
)

// String returns the direction in words.
func (d Direction) String() string {
	return [...]string{"to the successor", "from the predecessor", "to the predecessor"}[d]
}

// Action says what happens to a message.
type Action int

const (
	// Pass delivers it.
	Pass Action = iota
	// Drop loses it. A hook that drops all messages of a direction is a silent cut. A chunk sent to
	// the successor is dropped only when the link has stopped reading the chunks before it.
	Drop
	// Duplicate delivers it twice.
	Duplicate
	// Corrupt flips one bit of a copy of its payload. The sender's memory stays as it is.
	Corrupt
)

// Fault is applied to one message: first Run, then Delay, then Action. The zero value passes the
// message.
type Fault struct {
	Action Action
	// Delay holds the message and all behind it, until the link ends at the latest. Beats to the
	// predecessor are not delayed.
	Delay time.Duration
	// Run is called on the goroutine that sends or receives; nil: none.
	Run func()
	// Bit is the bit that Corrupt flips, modulo the payload's length in bits.
	Bit int
}

// Hook chooses the fault of a message. Each direction calls it from a goroutine of its own, also
// for heartbeats ([allreduce.Heartbeat]). It must be fast.
type Hook func(Direction, allreduce.Header) Fault

// Wrap puts hook on both links of a rank. A ring of one has no links, and they are returned
// unchanged.
func Wrap(links allreduce.Links, hook Hook) allreduce.Links {
	if links == (allreduce.Links{}) {
		return links
	}
	return allreduce.Links{
		Predecessor: &predecessor{
			Predecessor: links.Predecessor, hook: hook, end: newEnd(links.Predecessor),
		},
		Successor: &successor{
			Successor: links.Successor, hook: hook, end: newEnd(links.Successor),
		},
	}
}

// end ends all delays of a link together with the link.
type end struct {
	link allreduce.Link
	over chan struct{} // closed by the first Abort or Close
	once sync.Once
}

func newEnd(link allreduce.Link) *end { return &end{link: link, over: make(chan struct{})} }

func (e *end) finish() { e.once.Do(func() { close(e.over) }) }

func (e *end) inject(f Fault) {
	if f.Run != nil {
		f.Run()
	}
	if f.Delay <= 0 {
		return
	}
	timer := time.NewTimer(f.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-e.over:
	case <-e.link.Broken():
	}
}

type successor struct {
	allreduce.Successor
	*end
	hook Hook
}

func (s *successor) Abort(reason string) {
	s.finish()
	s.Successor.Abort(reason)
}

func (s *successor) Close() error {
	s.finish()
	return s.Successor.Close()
}

func (s *successor) Send(h allreduce.Header, payload []byte) error {
	f := s.hook(ToSuccessor, h)
	s.inject(f)
	switch f.Action {
	case Drop:
		if len(payload) == 0 {
			return s.Successor.Err()
		}
		// The link does not count a dropped message, so it might read an earlier payload for longer
		// than MaxFlight messages, when the sender already writes to it.
		return s.Successor.Flush()
	case Duplicate:
		if err := s.Successor.Send(h, payload); err != nil {
			return err
		}
	case Corrupt:
		payload = flipped(payload, f.Bit)
	}
	return s.Successor.Send(h, payload)
}

// flipped returns a copy of b with one bit flipped. The link may read it until Flush.
func flipped(b []byte, bit int) []byte {
	b = slices.Clone(b)
	flip(b, bit)
	return b
}

func flip(b []byte, bit int) {
	if len(b) > 0 {
		bit %= 8 * len(b)
		b[bit/8] ^= 1 << (bit % 8)
	}
}

type predecessor struct {
	allreduce.Predecessor
	*end
	hook  Hook
	again *copied // second delivery of a duplicated message, or nil
}

// copied is a message in memory of its own, outside of the link's buffers.
type copied struct {
	header  allreduce.Header
	payload []byte
}

func (p *predecessor) Abort(reason string) {
	p.finish()
	p.Predecessor.Abort(reason)
}

func (p *predecessor) Close() error {
	p.finish()
	return p.Predecessor.Close()
}

func (p *predecessor) Beat() {
	h := allreduce.Header{Phase: allreduce.Heartbeat}
	f := p.hook(ToPredecessor, h)
	if f.Run != nil {
		f.Run()
	}
	if f.Action != Drop {
		p.Predecessor.Beat()
	}
}

func (p *predecessor) Receive(m *allreduce.Message) error {
	if again := p.again; again != nil {
		p.again = nil
		again.deliver(m)
		return p.Err()
	}
	for {
		if err := p.Predecessor.Receive(m); err != nil {
			return err
		}
		f := p.hook(FromPredecessor, m.Header)
		p.inject(f)
		switch f.Action {
		case Drop:
			m.Release()
			continue
		case Duplicate:
			p.again = takeCopy(m)
			p.again.deliver(m)
		case Corrupt:
			c := takeCopy(m)
			flip(c.payload, f.Bit)
			c.deliver(m)
		}
		return nil
	}
}

// takeCopy copies the message and releases the link's buffers.
func takeCopy(m *allreduce.Message) *copied {
	c := &copied{m.Header, slices.Concat(m.Pieces...)}
	m.Release()
	return c
}

func (c *copied) deliver(m *allreduce.Message) {
	m.Header, m.OnRelease = c.header, nil
	m.Pieces = append(m.Pieces[:0], c.payload)
}
