package allreduce

import (
	"sync"
	"sync/atomic"
)

// memoryDepth is how many chunks a memory link holds before Send waits.
const memoryDepth = 4

// Pipe returns the two ends of a link between two ranks of one process: what from sends on the
// Successor, to receives on the Predecessor. The receiver reads the sender's own memory, so that
// nothing is copied or allocated for a chunk.
func Pipe(from, to Peer) (Successor, Predecessor) {
	p := &pipe{
		chunks:  make(chan *memoryChunk, memoryDepth),
		free:    make(chan *memoryChunk, memoryDepth),
		drained: make(chan struct{}, 1),
	}
	for range memoryDepth {
		c := &memoryChunk{}
		c.release = func() { p.put(c) }
		p.free <- c
	}
	p.head.init(to)
	p.tail.init(from)
	return &memorySuccessor{p}, &memoryPredecessor{p}
}

// pipe is the state that both ends share. A chunk is in one of free, chunks, the sender's hand
// and the receiver's.
type pipe struct {
	chunks  chan *memoryChunk // sent; closed by neither end
	free    chan *memoryChunk
	flight  atomic.Int32  // chunks whose payload may be read
	drained chan struct{} // has a token after flight became 0

	head memoryEnd // the sender's end; its peer is the receiver
	tail memoryEnd // the receiver's end; its peer is the sender
}

type memoryChunk struct {
	header  Header
	payload [1][]byte
	scratch []byte // of a big-endian machine
	release func()
}

func (p *pipe) put(c *memoryChunk) {
	c.payload[0] = nil
	p.free <- c
	if p.flight.Add(-1) == 0 {
		select {
		case p.drained <- struct{}{}:
		default:
		}
	}
}

// memoryEnd is one end's life: open, then closed by its own side, left or aborted by the other.
type memoryEnd struct {
	peer   Peer
	closed chan struct{} // by its own Close or Abort
	broken chan struct{} // by the other side's Abort

	mu      sync.Mutex
	err     error // set before broken is closed
	isShut  bool
	isBroke bool
}

func (e *memoryEnd) init(peer Peer) {
	e.peer = peer
	e.closed, e.broken = make(chan struct{}), make(chan struct{})
}

// shut closes the end from its own side, and reports whether it was open.
func (e *memoryEnd) shut() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isShut {
		return false
	}
	e.isShut = true
	close(e.closed)
	return true
}

func (e *memoryEnd) breakOff(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.isBroke {
		e.isBroke, e.err = true, err
		close(e.broken)
	}
}

func (e *memoryEnd) Peer() Peer              { return e.peer }
func (e *memoryEnd) Broken() <-chan struct{} { return e.broken }

func (e *memoryEnd) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

type memorySuccessor struct{ *pipe }

func (s *memorySuccessor) Peer() Peer              { return s.head.Peer() }
func (s *memorySuccessor) Broken() <-chan struct{} { return s.head.Broken() }
func (s *memorySuccessor) Err() error              { return s.head.Err() }

func (s *memorySuccessor) Abort(reason string) {
	if s.head.shut() {
		s.tail.breakOff(&AbortError{Reason: reason})
	}
}

func (s *memorySuccessor) Close() error {
	s.head.shut()
	return nil
}

func (s *memorySuccessor) Send(h Header, payload []float32) error {
	if err := s.ended(); err != nil {
		return err
	}
	select {
	case c := <-s.free:
		c.header, c.payload[0] = h, Bytes(payload, c.scratch)
		s.flight.Add(1)
		s.chunks <- c // never waits: the channel has room for all chunks there are
		return nil
	case <-s.head.closed:
	case <-s.head.broken:
	case <-s.tail.closed:
	}
	return s.ended()
}

func (s *memorySuccessor) Flush() error {
	for s.flight.Load() > 0 {
		select {
		case <-s.drained:
			continue
		case <-s.head.closed:
		case <-s.head.broken:
		case <-s.tail.closed:
		}
		return s.ended()
	}
	return nil
}

// ended says why nothing can be sent any more, or nil.
func (s *memorySuccessor) ended() error {
	switch {
	case isClosed(s.head.broken):
		return s.head.Err()
	case isClosed(s.head.closed):
		return ErrClosed
	case isClosed(s.tail.closed):
		return ErrLeft
	}
	return nil
}

type memoryPredecessor struct{ *pipe }

func (r *memoryPredecessor) Peer() Peer              { return r.tail.Peer() }
func (r *memoryPredecessor) Broken() <-chan struct{} { return r.tail.Broken() }
func (r *memoryPredecessor) Err() error              { return r.tail.Err() }

func (r *memoryPredecessor) Abort(reason string) {
	if r.tail.shut() {
		r.head.breakOff(&AbortError{Reason: reason})
	}
}

func (r *memoryPredecessor) Close() error {
	r.tail.shut()
	return nil
}

func (r *memoryPredecessor) Receive(m *Message) error {
	switch {
	case isClosed(r.tail.broken):
		return r.tail.Err()
	case isClosed(r.tail.closed):
		return ErrClosed
	}
	select {
	case c := <-r.chunks:
		r.take(m, c)
		return nil
	case <-r.tail.closed:
		return ErrClosed
	case <-r.tail.broken:
		return r.tail.Err()
	case <-r.head.closed:
	}
	select { // the sender has left: what it sent before still counts
	case c := <-r.chunks:
		r.take(m, c)
		return nil
	case <-r.tail.broken:
		return r.tail.Err()
	default:
		return ErrLeft
	}
}

func (r *memoryPredecessor) take(m *Message, c *memoryChunk) {
	m.Header, m.OnRelease = c.header, c.release
	m.Pieces = append(m.Pieces[:0], c.payload[0])
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
