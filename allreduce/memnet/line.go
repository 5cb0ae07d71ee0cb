package memnet

import (
	"slices"
	"sync/atomic"
	"time"

	"rondo/allreduce"
)

// depth is the number of messages that a link holds before Send waits, besides the one in transit.
const depth = 4

// line is a link between two peers, with both ends.
type line struct {
	net      *Network
	from, to string
	sender   *successor
	receiver *predecessor
	letters  chan letter   // sent, not in transit yet
	arrived  chan letter   // closed when the sender has left
	leaving  chan struct{} // closed when the sender leaves
	beats    atomic.Uint64
	beating  atomic.Bool // a beat is in transit
}

type letter struct {
	header  allreduce.Header
	payload []byte
	due     time.Time
}

// line links two peers. The caller holds the network's lock.
func (n *Network) line(from, to *meeting) (allreduce.Successor, allreduce.Predecessor) {
	l := &line{
		net: n, from: from.self, to: to.self,
		letters: make(chan letter, depth),
		arrived: make(chan letter),
		leaving: make(chan struct{}),
	}
	l.sender = &successor{
		Ending: allreduce.NewEnding(), line: l,
		peer: allreduce.Peer{Rank: to.seat.rankAt(int(to.seat.Rank)), Address: to.self},
	}
	l.receiver = &predecessor{
		Ending: allreduce.NewEnding(), line: l,
		peer: allreduce.Peer{Rank: from.seat.rankAt(int(from.seat.Rank)), Address: from.self},
	}
	n.lines[l] = struct{}{}
	go l.carry()
	return l.sender, l.receiver
}

// carry delivers the messages in order, until both ends are over.
func (l *line) carry() {
	l.carryLetters()
	<-l.receiver.Over()
	<-l.sender.Over()
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	delete(l.net.lines, l)
}

func (l *line) carryLetters() {
	for {
		select {
		case x := <-l.letters:
			l.deliver(x)
			continue
		case <-l.receiver.Over():
			return
		case <-l.leaving:
		}
		select {
		case x := <-l.letters: // sent before the sender left
			l.deliver(x)
		default:
			if l.pass(direction{l.from, l.to}, l.due(direction{l.from, l.to}), l.receiver.Over()) {
				close(l.arrived)
			}
			return
		}
	}
}

func (l *line) deliver(x letter) {
	if !l.pass(direction{l.from, l.to}, x.due, l.receiver.Over()) {
		return
	}
	select {
	case l.arrived <- x:
	case <-l.receiver.Over():
	}
}

// due returns when a message sent now in direction w arrives.
func (l *line) due(w direction) time.Time {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	return time.Now().Add(l.net.at(w).delay)
}

// pass waits until the message is due and the direction is open. It reports whether that happened
// before over.
func (l *line) pass(w direction, due time.Time, over <-chan struct{}) bool {
	if wait := time.Until(due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-over:
			return false
		}
	}
	l.net.mu.Lock()
	open := l.net.at(w).open
	l.net.mu.Unlock()
	select {
	case <-open:
		return true
	case <-over:
		return false
	}
}

// notify runs effect at the far end of direction w after the direction's delay. It is not part of
// the stream, and is dropped when the far end is over.
func (l *line) notify(w direction, end *allreduce.Ending, effect func()) {
	due := l.due(w)
	go func() {
		if l.pass(w, due, end.Over()) {
			effect()
		}
	}()
}

// maxReasonBytes is the longest reason of an abort, as in other links.
const maxReasonBytes = 1 << 10

func aborted(reason string) error {
	if len(reason) > maxReasonBytes {
		reason = reason[:maxReasonBytes]
	}
	return &allreduce.AbortError{Reason: reason}
}

// successor is the sender's end.
type successor struct {
	*allreduce.Ending
	line *line
	peer allreduce.Peer
}

func (s *successor) Peer() allreduce.Peer { return s.peer }
func (s *successor) Beats() uint64        { return s.line.beats.Load() }
func (s *successor) Flush() error         { return nil } // Send has copied the payload

func (s *successor) Send(h allreduce.Header, payload []byte) error {
	if err := s.Err(); err != nil {
		return err
	}
	x := letter{h, slices.Clone(payload),
		s.line.due(direction{s.line.from, s.line.to})}
	select {
	case s.line.letters <- x:
		return nil
	case <-s.Over():
		return s.Err()
	}
}

func (s *successor) Abort(reason string) {
	if s.End(allreduce.ErrClosed) {
		l := s.line
		end := func() { l.receiver.End(aborted(reason)) }
		l.notify(direction{l.from, l.to}, l.receiver.Ending, end)
	}
}

func (s *successor) Close() error {
	if s.End(allreduce.ErrClosed) {
		close(s.line.leaving)
	}
	return nil
}

// predecessor is the receiver's end.
type predecessor struct {
	*allreduce.Ending
	line *line
	peer allreduce.Peer
}

func (p *predecessor) Peer() allreduce.Peer { return p.peer }

func (p *predecessor) Receive(m *allreduce.Message) error {
	if err := p.Err(); err != nil {
		return err
	}
	select {
	case x, more := <-p.line.arrived:
		if !more {
			p.End(allreduce.ErrLeft)
			return p.Err()
		}
		m.Header, m.OnRelease = x.header, nil
		m.Pieces = append(m.Pieces[:0], x.payload)
		return nil
	case <-p.Over():
		return p.Err()
	}
}

func (p *predecessor) Beat() {
	l := p.line
	if p.Err() != nil || !l.beating.CompareAndSwap(false, true) {
		return
	}
	l.notify(direction{l.to, l.from}, l.sender.Ending, func() {
		l.beats.Add(1)
		l.beating.Store(false)
	})
}

func (p *predecessor) Abort(reason string) {
	if p.End(allreduce.ErrClosed) {
		l := p.line
		l.notify(direction{l.to, l.from}, l.sender.Ending, func() { l.sender.End(aborted(reason)) })
	}
}

func (p *predecessor) Close() error {
	if p.End(allreduce.ErrClosed) {
		l := p.line
		end := func() { l.sender.End(allreduce.ErrLeft) }
		l.notify(direction{l.to, l.from}, l.sender.Ending, end)
	}
	return nil
}
