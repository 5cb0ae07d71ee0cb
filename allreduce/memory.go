package allreduce

import "sync/atomic"

// memoryDepth is how many chunks a memory link holds before Send waits.
const memoryDepth = MaxFlight

// Pipe returns the two ends of a link between two ranks of one process: from holds the Successor,
// to holds the Predecessor. The receiver reads the sender's own memory, so no chunk is copied or
// allocated.
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
	s := &memorySuccessor{Ending: NewEnding(), pipe: p, peer: to}
	r := &memoryPredecessor{Ending: NewEnding(), pipe: p, peer: from}
	s.other, r.other = r.Ending, s.Ending
	return s, r
}

// pipe is the state that both ends share. A chunk is in free, in chunks, or held by one end.
type pipe struct {
	chunks  chan *memoryChunk
	free    chan *memoryChunk
	flight  atomic.Int32  // chunks that the receiver may still read
	drained chan struct{} // has a token after flight became 0
	beats   atomic.Uint64 // beats that the receiver has sent
}

type memoryChunk struct {
	header  Header
	payload []byte
	release func()
}

func (p *pipe) put(c *memoryChunk) {
	c.payload = nil
	p.free <- c
	if p.flight.Add(-1) == 0 {
		select {
		case p.drained <- struct{}{}:
		default:
		}
	}
}

type memorySuccessor struct {
	*Ending
	*pipe
	peer  Peer
	other *Ending // the receiver's
}

func (s *memorySuccessor) Peer() Peer { return s.peer }

func (s *memorySuccessor) Abort(reason string) {
	if s.Err() == nil {
		s.other.End(&AbortError{Reason: reason}) // before s.End: else the receiver sees a plain end
	}
	s.End(ErrClosed)
}

// Close sends nothing: a receiver without a chunk looks at this end's Over.
func (s *memorySuccessor) Close() error {
	s.End(ErrClosed)
	return nil
}

func (s *memorySuccessor) Send(h Header, payload []byte) error {
	if err := s.Err(); err != nil {
		return err
	}
	select {
	case c := <-s.free:
		c.header, c.payload = h, payload
		s.flight.Add(1)
		s.chunks <- c // never waits: it has room for every chunk of the pipe
		return nil
	case <-s.Over():
		return s.Err()
	}
}

func (s *memorySuccessor) Flush() error {
	for s.flight.Load() > 0 {
		select {
		case <-s.drained:
		case <-s.Over():
			return s.Err()
		}
	}
	return nil
}

func (s *memorySuccessor) Beats() uint64 { return s.beats.Load() }

type memoryPredecessor struct {
	*Ending
	*pipe
	peer  Peer
	other *Ending // the sender's
}

func (r *memoryPredecessor) Peer() Peer { return r.peer }

// Abort ends this end first: else a Receive takes the other's end for the sender's own.
func (r *memoryPredecessor) Abort(reason string) {
	if r.End(ErrClosed) {
		r.other.End(&AbortError{Reason: reason})
	}
}

func (r *memoryPredecessor) Close() error {
	r.End(ErrClosed)
	r.other.End(ErrLeft)
	return nil
}

func (r *memoryPredecessor) Receive(m *Message) error {
	if err := r.Err(); err != nil {
		return err
	}
	select {
	case c := <-r.chunks:
		r.take(m, c)
		return nil
	case <-r.Over():
		return r.Err()
	case <-r.other.Over():
	}
	select { // the sender has ended: its earlier chunks are still delivered
	case c := <-r.chunks:
		r.take(m, c)
		return nil
	default:
		r.End(ErrLeft) // does nothing if the sender gave another reason
		return r.Err()
	}
}

func (r *memoryPredecessor) Beat() { r.beats.Add(1) }

func (r *memoryPredecessor) take(m *Message, c *memoryChunk) {
	m.Header, m.OnRelease = c.header, c.release
	m.Pieces = append(m.Pieces[:0], c.payload)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
