// Package memnet is an in-memory network that connects the ranks of rings within one process. It
// replaces allreduce/grpclink in simulations.
//
// Peers are named by address. The network can silently cut a direction between two peers, delay it,
// break two peers' links, or crash a peer. It waits only on channels and timers, so it runs in
// testing/synctest bubbles. Unlike [allreduce.Pipe] it copies each payload. It makes no decision
// about rings, and imports only allreduce.
package memnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"rondo/allreduce"
)

// Network connects peers. Its methods may be called from any goroutine.
type Network struct {
	mu    sync.Mutex // never held while waiting
	hosts map[endpoint]*host
	paths map[direction]*path
	lines map[*line]struct{} // lines with an open end
}

// endpoint is where a peer accepts its predecessor's link, for one of its rings.
type endpoint struct {
	address string
	circle  string
}

// host is a peer's state for one of its rings, like a grpclink.Server.
type host struct {
	generation allreduce.Generation
	waiting    *meeting // nil: no Connect waits
}

// direction is one of the two directions between two peers.
type direction struct{ from, to string }

// path is the state of a direction.
type path struct {
	delay time.Duration
	open  chan struct{} // closed: messages pass
}

// New returns a network without delays or cuts.
func New() *Network {
	return &Network{
		hosts: map[endpoint]*host{},
		paths: map[direction]*path{},
		lines: map[*line]struct{}{},
	}
}

// at returns the path of a direction. The caller holds the lock.
func (n *Network) at(w direction) *path {
	r := n.paths[w]
	if r == nil {
		r = &path{open: make(chan struct{})}
		close(r.open)
		n.paths[w] = r
	}
	return r
}

// Cut silently holds back all messages from one peer to another until Heal, as TCP does while it
// retransmits. It cuts one direction; a link uses both.
func (n *Network) Cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := n.at(direction{from, to}); passes(r) {
		r.open = make(chan struct{})
	}
}

// Heal reopens the direction from one peer to another, and delivers the messages held back.
func (n *Network) Heal(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := n.at(direction{from, to}); !passes(r) {
		close(r.open)
	}
	n.settle()
}

// Reaches reports whether messages pass between two peers in both directions.
func (n *Network) Reaches(a, b string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return passes(n.at(direction{a, b})) && passes(n.at(direction{b, a}))
}

func passes(r *path) bool {
	select {
	case <-r.open:
		return true
	default:
		return false
	}
}

// Delay delays messages sent later from one peer to another. It does not delay the forming of
// links.
func (n *Network) Delay(from, to string, delay time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at(direction{from, to}).delay = delay
}

// Break breaks all links between two peers at once, on both sides. They may connect again.
func (n *Network) Break(a, b string) {
	n.breakLines(func(l *line) bool {
		return l.from == a && l.to == b || l.from == b && l.to == a
	})
}

// Crash ends a peer's process: all its links break, its Connect fails, and its generations are
// forgotten. A new process may take the address.
func (n *Network) Crash(address string) {
	n.mu.Lock()
	for at, h := range n.hosts {
		if at.address != address {
			continue
		}
		if h.waiting != nil {
			h.waiting.conclude(errors.New("the process has crashed"))
		}
		delete(n.hosts, at)
	}
	n.mu.Unlock()
	n.breakLines(func(l *line) bool { return l.from == address || l.to == address })
}

func (n *Network) breakLines(which func(*line) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for l := range n.lines {
		if which(l) {
			l.sender.End(errLost)
			l.receiver.End(errLost)
		}
	}
}

// errLost is the error of a link that ended without Close or Abort.
var errLost = errors.New("is gone: its stream ended without Close or Abort")

// Seat is a peer's place in a ring of one generation.
type Seat struct {
	Generation allreduce.Generation // at least 1
	Rank       allreduce.Rank
	World      int
	// Circle names the ring among those that a peer is in at once. Each has its own generations.
	Circle string
	Ranks  []allreduce.Rank // names of the ring's ranks; nil: their places
}

// rankAt returns the name of the rank at a place of the ring.
func (s Seat) rankAt(rank int) allreduce.Rank {
	if s.Ranks != nil {
		return s.Ranks[rank]
	}
	return allreduce.Rank(rank)
}

func (s Seat) predecessor() int { return (int(s.Rank) + s.World - 1) % s.World }
func (s Seat) successor() int   { return (int(s.Rank) + 1) % s.World }

// meeting is a Connect call that waits for its neighbours.
type meeting struct {
	self      string
	seat      Seat
	addresses []string
	links     allreduce.Links
	err       error
	over      bool
	done      chan struct{} // closed when both links exist or err is set
}

func (m *meeting) conclude(err error) {
	if !m.over {
		m.over, m.err = true, err
		close(m.done)
	}
}

func (m *meeting) blame(rank int, err error) {
	m.conclude(&allreduce.PeerError{Peer: m.peer(rank), Err: err})
}

// Connect joins the ring of seat as the peer at self, and returns its links for allreduce.New,
// which closes them. addresses are the members' in ring order. It waits for both neighbours until
// ctx ends. A peer's generations must grow, and a neighbour at a newer generation refuses the link.
// A neighbour's fault is an allreduce.PeerError. A ring of one has no links.
func (n *Network) Connect(
	ctx context.Context, self string, seat Seat, addresses []string,
) (allreduce.Links, error) {
	start := time.Now()
	m, err := n.arrive(self, seat, addresses)
	if err != nil || seat.World == 1 {
		return allreduce.Links{}, err
	}
	select {
	case <-m.done:
	case <-ctx.Done():
	}
	n.mu.Lock()
	after := time.Since(start).Round(time.Millisecond)
	switch {
	case m.over:
	case m.links.Successor == nil:
		m.blame(seat.successor(), fmt.Errorf("ring link of generation %d to %v: no answer after "+
			"%v: %w", seat.Generation, m.peer(seat.successor()), after, context.Cause(ctx)))
	default:
		m.blame(seat.predecessor(), fmt.Errorf("ring link of generation %d from %v: no "+
			"connection came: %w", seat.Generation, m.peer(seat.predecessor()), context.Cause(ctx)))
	}
	if h := n.hosts[endpoint{self, seat.Circle}]; h != nil && h.waiting == m {
		h.waiting = nil
	}
	n.settle() // peers that wait for this one are refused now
	n.mu.Unlock()
	if m.err == nil {
		return m.links, nil
	}
	reason := fmt.Sprintf("rank %d could not join the ring", seat.Rank)
	if m.links.Predecessor != nil {
		m.links.Predecessor.Abort(reason)
	}
	if m.links.Successor != nil {
		m.links.Successor.Abort(reason)
	}
	return allreduce.Links{}, m.err
}

func (m *meeting) peer(rank int) allreduce.Peer {
	return allreduce.Peer{Rank: m.seat.rankAt(rank), Address: m.addresses[rank]}
}

// arrive registers a Connect of self at seat's generation. It ends the Connect of an older
// generation.
func (n *Network) arrive(self string, seat Seat, addresses []string) (*meeting, error) {
	switch {
	case seat.World < 1 || seat.World > allreduce.MaxWorld:
		return nil, fmt.Errorf("ring link: world %d is not 1 to %d", seat.World,
			allreduce.MaxWorld)
	case seat.Generation < 1:
		return nil, fmt.Errorf("ring link: generation %d is not 1 or more", seat.Generation)
	case seat.Rank < 0 || int(seat.Rank) >= seat.World:
		return nil, fmt.Errorf("ring link: rank %d is not 0 to %d", seat.Rank, seat.World-1)
	case len(addresses) != seat.World:
		return nil, fmt.Errorf("ring of %d: %d addresses", seat.World, len(addresses))
	case seat.Ranks != nil && len(seat.Ranks) != seat.World:
		return nil, fmt.Errorf("ring of %d: %d names", seat.World, len(seat.Ranks))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	at := endpoint{self, seat.Circle}
	h := n.hosts[at]
	if h == nil {
		h = &host{}
		n.hosts[at] = h
	}
	if seat.Generation <= h.generation {
		return nil, fmt.Errorf("ring server: generation %d is not newer than %d",
			seat.Generation, h.generation)
	}
	if h.waiting != nil {
		h.waiting.conclude(fmt.Errorf("ring link of generation %d: a newer generation has come",
			h.generation))
	}
	m := &meeting{self: self, seat: seat, addresses: addresses, done: make(chan struct{})}
	h.generation, h.waiting = seat.Generation, m
	if seat.World == 1 {
		h.waiting = nil
	}
	n.settle()
	return m, nil
}

// settle links all peers that wait for each other. The caller holds the lock.
func (n *Network) settle() {
	for _, at := range slices.SortedFunc(maps.Keys(n.hosts), func(a, b endpoint) int {
		return cmp.Or(cmp.Compare(a.address, b.address), cmp.Compare(a.circle, b.circle))
	}) {
		if m := n.hosts[at].waiting; m != nil && !m.over && m.links.Successor == nil {
			n.call(m)
		}
	}
}

// call links m to its successor if that waits for m, and fails m if it cannot wait for m any more.
func (n *Network) call(m *meeting) {
	to := m.peer(m.seat.successor())
	h := n.hosts[endpoint{to.Address, m.seat.Circle}]
	if h == nil || h.generation < m.seat.Generation ||
		!passes(n.at(direction{m.self, to.Address})) ||
		!passes(n.at(direction{to.Address, m.self})) {
		return
	}
	other := h.waiting
	refused := ""
	switch {
	case h.generation > m.seat.Generation:
		refused = fmt.Sprintf("generation %d is stale, this worker is at %d",
			m.seat.Generation, h.generation)
	case other == nil || other.over || other.links.Predecessor != nil:
		refused = fmt.Sprintf("this worker waits for no link of generation %d", h.generation)
	case other.seat.World != m.seat.World:
		refused = fmt.Sprintf("it is in a ring of %d, this worker in one of %d",
			m.seat.World, other.seat.World)
	case other.seat.predecessor() != int(m.seat.Rank):
		refused = fmt.Sprintf("it is rank %d, this worker's neighbour is rank %d",
			m.seat.Rank, other.seat.predecessor())
	}
	if refused != "" {
		m.blame(m.seat.successor(), fmt.Errorf("ring link of generation %d to %v: refused: %s",
			m.seat.Generation, to, refused))
		return
	}
	m.links.Successor, other.links.Predecessor = n.line(m, other)
	for _, each := range []*meeting{m, other} {
		if each.links.Predecessor != nil && each.links.Successor != nil {
			each.conclude(nil)
		}
	}
}
