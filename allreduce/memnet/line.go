package memnet

import (
	"slices"
	"sync/atomic"
	"time"

	"rondo/allreduce"
)

// depth is how many messages a link holds that the receiver has not asked for, besides the one
// that is on its way.
const depth = 4

// line is a link between two peers, with both its ends.
type line struct {
	net      *Network
	from, to string
	sender   *successor
	receiver *predecessor
	letters  chan letter   // sent, not yet on the way
	arrived  chan letter   // closed when the sender has left
	leaving  chan struct{} // closed when the sender leaves
	beats    atomic.Uint64
	beating  atomic.Bool // a sign of life is on its way
}

type letter struct {
	header  allreduce.Header
	payload []byte
	due     time.Time
}

// line links two peers; the caller holds the network's lock.
func (n *Network) line(from, to *meeting) (allreduce.Successor, allreduce.Predecessor) {
	l := &line{
		net: n, from: from.self, to: to.self,
		letters: make(chan letter, depth),
		arrived: make(chan letter),
		leaving: make(chan struct{}),
	}
	l.sender = &successor{
		Ending: allreduce.NewEnding(), line: l,
		peer: allreduce.Peer{Rank: to.seat.called(int(to.seat.Rank)), Address: to.self},
	}
	l.receiver = &predecessor{
		Ending: allreduce.NewEnding(), line: l,
		peer: allreduce.Peer{Rank: from.seat.called(int(from.seat.Rank)), Address: from.self},
	}
	n.lines[l] = struct{}{}
	go l.carry()
	return l.sender, l.receiver
}

// carry takes the messages to the receiver, in order, until both ends are over.
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
		case x := <-l.letters: // it was sent before the sender left
			l.deliver(x)
		default:
			if l.pass(way{l.from, l.to}, l.due(way{l.from, l.to}), l.receiver.Over()) {
				close(l.arrived)
			}
			return
		}
	}
}

func (l *line) deliver(x letter) {
	if !l.pass(way{l.from, l.to}, x.due, l.receiver.Over()) {
		return
	}
	select {
	case l.arrived <- x:
	case <-l.receiver.Over():
	}
}

// due is when what is sent now on a way arrives.
func (l *line) due(w way) time.Time {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	return time.Now().Add(l.net.at(w).delay)
}

// pass waits until it is due and the way is open, and reports whether it came to that before over.
func (l *line) pass(w way, due time.Time, over <-chan struct{}) bool {
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

// tell does at the other end of a way, when the word has got there, what the word is for. It is
// no part of the stream, and ends with the other end.
func (l *line) tell(w way, end *allreduce.Ending, word func()) {
	due := l.due(w)
	go func() {
		if l.pass(w, due, end.Over()) {
			word()
		}
	}()
}

// maxReasonBytes bounds the reason of an abort, as other links do.
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
func (s *successor) Flush() error         { return nil } // what is sent has been copied

func (s *successor) Send(h allreduce.Header, payload []byte) error {
	if err := s.Err(); err != nil {
		return err
	}
	x := letter{h, slices.Clone(payload),
		s.line.due(way{s.line.from, s.line.to})}
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
		l.tell(way{l.from, l.to}, l.receiver.Ending, func() { l.receiver.End(aborted(reason)) })
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
	l.tell(way{l.to, l.from}, l.sender.Ending, func() {
		l.beats.Add(1)
		l.beating.Store(false)
	})
}

func (p *predecessor) Abort(reason string) {
	if p.End(allreduce.ErrClosed) {
		l := p.line
		l.tell(way{l.to, l.from}, l.sender.Ending, func() { l.sender.End(aborted(reason)) })
	}
}

func (p *predecessor) Close() error {
	if p.End(allreduce.ErrClosed) {
		l := p.line
		l.tell(way{l.to, l.from}, l.sender.Ending, func() { l.sender.End(allreduce.ErrLeft) })
	}
	return nil
}
