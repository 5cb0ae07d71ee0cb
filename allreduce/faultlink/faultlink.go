// Package faultlink disturbs the links of a ring, for rehearsals and for tests: it loses, doubles,
// corrupts or delays messages, or runs what the caller likes at one of them.
//
// It decides nothing: a [Hook] sees every message and says what becomes of it. It imports
// allreduce alone, and works over any link.
package faultlink

import (
	"slices"
	"sync"
	"time"

	"rondo/allreduce"
)

// Direction is where a message is on its way, as this rank sees it.
type Direction int

const (
	// ToSuccessor is a chunk or heartbeat that this rank sends.
	ToSuccessor Direction = iota
	// FromPredecessor is one that it receives.
	FromPredecessor
	// ToPredecessor is a sign of life against the stream. It can be dropped, not altered.
	ToPredecessor
)

// String returns the direction in words.
func (d Direction) String() string {
	return [...]string{"to the successor", "from the predecessor", "to the predecessor"}[d]
}

// Action is what becomes of a message.
type Action int

const (
	// Pass lets it through.
	Pass Action = iota
	// Drop loses it. A hook that drops all in a direction cuts it silently. A chunk that this rank
	// sends is lost when the link reads none before it any more.
	Drop
	// Duplicate lets it arrive twice.
	Duplicate
	// Corrupt flips one bit of its payload, on a copy: what the sender has stays as it is.
	Corrupt
)

// Fault is what happens to one message: first Run, then the delay, then the action. The zero
// value lets it pass.
type Fault struct {
	Action Action
	// Delay holds the message, and all behind it, until the link ends at the latest. It does not
	// hold a sign of life against the stream.
	Delay time.Duration
	// Run is called on the goroutine that sends or receives; nil is nothing.
	Run func()
	// Bit is the one that Corrupt flips, modulo the bits of the payload.
	Bit int
}

// Hook says what happens to a message. All directions call it, each from its own goroutine, with
// heartbeats too ([allreduce.Heartbeat]); it must be fast.
type Hook func(Direction, allreduce.Header) Fault

// Wrap puts hook on both links of a rank. The links of a ring of one are returned as they are.
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

// end lets no delay outlive its link.
type end struct {
	link allreduce.Link
	over chan struct{} // closed by the first Abort or Close
	once sync.Once
}

func newEnd(link allreduce.Link) *end { return &end{link: link, over: make(chan struct{})} }

func (e *end) finish() { e.once.Do(func() { close(e.over) }) }

// meet runs and waits as the fault says.
func (e *end) meet(f Fault) {
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
	s.meet(f)
	switch f.Action {
	case Drop:
		if len(payload) == 0 {
			return s.Successor.Err()
		}
		// The link does not count what it never sees: without this it might read a payload after
		// MaxFlight more messages, of which this is one, and so after the sender writes to it.
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

// flipped returns a copy of b with one bit flipped. The link may hold it until it is flushed.
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
	again *copied // arrives next: a message for the second time
}

// copied is a message that is no longer in the link's buffers.
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
		p.meet(f)
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

// takeCopy takes the message out of the link's buffers and gives them back.
func takeCopy(m *allreduce.Message) *copied {
	c := &copied{m.Header, slices.Concat(m.Pieces...)}
	m.Release()
	return c
}

func (c *copied) deliver(m *allreduce.Message) {
	m.Header, m.OnRelease = c.header, nil
	m.Pieces = append(m.Pieces[:0], c.payload)
}
