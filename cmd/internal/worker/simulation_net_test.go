package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/grpclink"
)

// simNet is the ring's network: what is sent arrives in order, as on TCP, or late, while a
// direction is cut.
type simNet struct {
	mu      sync.Mutex
	cut     map[[2]string]bool // from, to: nothing arrives
	crashed map[string]bool
	pipes   map[simRoute]*simPipe
	changed chan struct{} // closed when cut or crashed changes
}

// simRoute is a link of one generation.
type simRoute struct {
	generation allreduce.Generation
	from, to   string
}

// simDepth is how many messages a link holds before Send waits.
const simDepth = 8

// simPipe is what both ends of a link share.
type simPipe struct {
	net       *simNet
	route     simRoute
	messages  chan simMessage
	successor *simSuccessor
	receiver  *simPredecessor
	arrived   [2]bool // the sender, the receiver
	beats     uint64
	left      chan struct{} // closed when the sender has left in good order
	leave     sync.Once
}

type simMessage struct {
	header  allreduce.Header
	payload []byte
}

func newSimNet() *simNet {
	return &simNet{cut: map[[2]string]bool{}, crashed: map[string]bool{},
		pipes: map[simRoute]*simPipe{}, changed: make(chan struct{})}
}

// change does something to the network, and wakes whoever waits for it.
func (n *simNet) change(do func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	do()
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *simNet) setCut(from, to string, both, cut bool) {
	n.change(func() {
		n.cut[[2]string{from, to}] = cut
		if both || !cut {
			n.cut[[2]string{to, from}] = cut
		}
	})
}

// crash breaks all links of a process at once, as the end of a process does.
func (n *simNet) crash(address string) {
	var broken []*allreduce.Ending
	n.change(func() {
		n.crashed[address] = true
		for route, p := range n.pipes {
			if route.from == address || route.to == address {
				broken = append(broken, p.successor.Ending, p.receiver.Ending)
			}
		}
	})
	for _, e := range broken {
		e.End(errors.New("is gone"))
	}
}

// reaches reports whether what from sends arrives, and what is closed when that may have changed.
func (n *simNet) reaches(from, to string) (bool, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	dead := n.crashed[from] || n.crashed[to]
	return !dead && !n.cut[[2]string{from, to}], n.changed
}

// connect is grpclink.Connect.
func (n *simNet) connect(
	ctx context.Context, self string, seat grpclink.Seat, addresses []string,
) (allreduce.Links, error) {
	if seat.World == 1 {
		return allreduce.Links{}, nil
	}
	rank := int(seat.Rank)
	before := (rank + seat.World - 1) % seat.World
	after := (rank + 1) % seat.World
	out := n.arrive(simRoute{seat.Generation, self, addresses[after]}, rank, after, 0)
	in := n.arrive(simRoute{seat.Generation, addresses[before], self}, before, rank, 1)
	tick := time.NewTicker(simPoll)
	defer tick.Stop()
	for {
		if n.ready(out) && n.ready(in) {
			return allreduce.Links{Predecessor: in.receiver, Successor: out.successor}, nil
		}
		err := in.receiver.Err()
		if err == nil {
			err = out.successor.Err()
		}
		if err == nil {
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		in.receiver.Abort("cannot join the ring")
		out.successor.Abort("cannot join the ring")
		peer := allreduce.Peer{Rank: allreduce.Rank(after), Address: addresses[after]}
		if n.ready(out) {
			peer = allreduce.Peer{Rank: allreduce.Rank(before), Address: addresses[before]}
		}
		return allreduce.Links{}, &allreduce.PeerError{Peer: peer, Err: err}
	}
}

// arrive says that one side of a link is there.
func (n *simNet) arrive(route simRoute, from, to, side int) *simPipe {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.pipes[route]
	if p == nil {
		p = &simPipe{net: n, route: route, messages: make(chan simMessage, simDepth),
			left: make(chan struct{})}
		p.successor = &simSuccessor{Ending: allreduce.NewEnding(), simPipe: p,
			peer: allreduce.Peer{Rank: allreduce.Rank(to), Address: route.to}}
		p.receiver = &simPredecessor{Ending: allreduce.NewEnding(), simPipe: p,
			peer: allreduce.Peer{Rank: allreduce.Rank(from), Address: route.from}}
		n.pipes[route] = p
	}
	p.arrived[side] = true
	return p
}

// ready reports whether a link has both sides, which reach each other.
func (n *simNet) ready(p *simPipe) bool {
	there, _ := n.reaches(p.route.from, p.route.to)
	back, _ := n.reaches(p.route.to, p.route.from)
	n.mu.Lock()
	defer n.mu.Unlock()
	return there && back && p.arrived[0] && p.arrived[1]
}

type simSuccessor struct {
	*allreduce.Ending
	*simPipe
	peer allreduce.Peer
}

func (s *simSuccessor) Peer() allreduce.Peer { return s.peer }

func (s *simSuccessor) Send(h allreduce.Header, payload []float32) error {
	m := simMessage{header: h}
	for _, f := range payload {
		m.payload = binary.LittleEndian.AppendUint32(m.payload, math.Float32bits(f))
	}
	select {
	case <-s.Over():
		return s.Err()
	default:
	}
	select {
	case s.messages <- m:
		return nil
	case <-s.Over():
		return s.Err()
	}
}

func (s *simSuccessor) Flush() error { return s.Err() }

func (s *simSuccessor) Beats() uint64 {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	return s.beats
}

func (s *simSuccessor) Abort(reason string) {
	if there, _ := s.net.reaches(s.route.from, s.route.to); there && s.Err() == nil {
		s.receiver.End(&allreduce.AbortError{Reason: reason})
	}
	s.End(allreduce.ErrClosed)
}

func (s *simSuccessor) Close() error {
	s.leave.Do(func() { close(s.left) })
	s.End(allreduce.ErrClosed)
	return nil
}

type simPredecessor struct {
	*allreduce.Ending
	*simPipe
	peer allreduce.Peer
}

func (r *simPredecessor) Peer() allreduce.Peer { return r.peer }

func (r *simPredecessor) Receive(m *allreduce.Message) error {
	for {
		there, changed := r.net.reaches(r.route.from, r.route.to)
		messages, left := r.messages, r.left
		if !there {
			messages, left = nil, nil
		}
		select {
		case <-r.Over():
			return r.Err()
		case got := <-messages:
			m.Header, m.Pieces = got.header, append(m.Pieces[:0], got.payload)
			return nil
		default:
		}
		select {
		case <-r.Over():
		case got := <-messages:
			m.Header, m.Pieces = got.header, append(m.Pieces[:0], got.payload)
			return nil
		case <-left:
			if len(r.messages) == 0 {
				r.End(allreduce.ErrLeft)
			}
		case <-changed:
		}
	}
}

func (r *simPredecessor) Beat() {
	if there, _ := r.net.reaches(r.route.to, r.route.from); !there {
		return
	}
	r.net.mu.Lock()
	defer r.net.mu.Unlock()
	r.beats++
}

func (r *simPredecessor) Abort(reason string) {
	if there, _ := r.net.reaches(r.route.to, r.route.from); there && r.Err() == nil {
		r.successor.End(&allreduce.AbortError{Reason: reason})
	}
	r.End(allreduce.ErrClosed)
}

func (r *simPredecessor) Close() error {
	if there, _ := r.net.reaches(r.route.to, r.route.from); there {
		r.successor.End(allreduce.ErrLeft)
	}
	r.End(allreduce.ErrClosed)
	return nil
}
