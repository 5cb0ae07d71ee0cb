package allreduce

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// MaxWorld is the largest number of ranks in a ring.
const MaxWorld = 1 << 14

// Config sets a rank's place in the ring and its limits. All ranks have the same World, Generation
// and ChunkBytes.
type Config struct {
	Rank       Rank // this rank's place in the ring
	World      int  // ranks in the ring, 1 to MaxWorld
	Generation Generation

	// Ranks names the members of a ring that has only some of a generation's ranks, in ring order.
	// Errors and links use these names. nil: each member's name is its place in the ring.
	Ranks []Rank

	// ChunkBytes is the largest payload of a message, a multiple of 4; 0 is MaxChunkBytes. Short
	// segments are cut into smaller chunks, so that one is reduced while the next is in flight.
	ChunkBytes int

	// ChunkTimeout is how long a neighbour may be silent, in a collective or between two, before it
	// counts as dead. Each rank sends both neighbours HeartbeatsPerChunkTimeout signs of life
	// within it, so it must be longer than one chunk takes on the slowest link.
	ChunkTimeout time.Duration

	// StepTimeout is how long a rank waits in a collective for a chunk to arrive or to be taken
	// while the neighbour shows signs of life. Later ring steps wait up to a quarter longer. It
	// must be longer than ChunkTimeout and than the ranks' step times differ, because the first
	// chunk of a collective waits for the slowest rank to start it.
	//
	// Each queued collective has a wait of its own. The wait begins when this rank has started the
	// collective and finished the one before. So the time from one Start to the next is limited to
	// StepTimeout too, while other ranks wait in the later collective. A neighbour that has not
	// been heard yet also has this long: its own ring may still be forming.
	StepTimeout time.Duration
	// GatherTimeout replaces StepTimeout in an all-gather by itself; 0: StepTimeout.
	GatherTimeout time.Duration
}

// HeartbeatsPerChunkTimeout is the number of signs of life that a rank sends each neighbour per
// ChunkTimeout.
const HeartbeatsPerChunkTimeout = 4

func (c Config) beatInterval() time.Duration { return c.ChunkTimeout / HeartbeatsPerChunkTimeout }

func (c Config) validate(links Links) (Config, error) {
	if c.ChunkBytes == 0 {
		c.ChunkBytes = MaxChunkBytes
	}
	switch {
	case !littleEndian():
		return c, errors.New("ring: this machine is big endian; rings need little-endian machines")
	case c.World < 1 || c.World > MaxWorld:
		return c, fmt.Errorf("ring: world %d is not 1 to %d", c.World, MaxWorld)
	case c.Rank < 0 || int(c.Rank) >= c.World:
		return c, fmt.Errorf("ring: rank %d is not 0 to %d", c.Rank, c.World-1)
	case c.ChunkBytes < 4 || c.ChunkBytes > MaxChunkBytes || c.ChunkBytes%4 != 0:
		return c, fmt.Errorf("ring: chunks of %d bytes: want a multiple of 4, at most %d",
			c.ChunkBytes, MaxChunkBytes)
	case c.ChunkTimeout < HeartbeatsPerChunkTimeout:
		return c, fmt.Errorf("ring: chunk timeout %v is not positive", c.ChunkTimeout)
	case c.StepTimeout <= c.ChunkTimeout:
		return c, fmt.Errorf("ring: step timeout %v is not longer than the chunk timeout, %v",
			c.StepTimeout, c.ChunkTimeout)
	case c.World == 1 && links != (Links{}):
		return c, errors.New("ring: a ring of one has no links")
	case c.Ranks != nil && len(c.Ranks) != c.World:
		return c, fmt.Errorf("ring: %d names for %d ranks", len(c.Ranks), c.World)
	case c.World > 1 && (links.Predecessor == nil || links.Successor == nil):
		return c, fmt.Errorf("ring: rank %d of %d needs two links", c.Rank, c.World)
	}
	if c.World == 1 {
		return c, nil
	}
	for _, end := range []struct {
		name      string
		got, want Rank
	}{
		{"predecessor", links.Predecessor.Peer().Rank, c.rankAt(int(c.Rank) - 1)},
		{"successor", links.Successor.Peer().Rank, c.rankAt(int(c.Rank) + 1)},
	} {
		if end.got != end.want {
			return c, fmt.Errorf("ring: the %s of rank %d of %d is rank %d, the link's is rank %d",
				end.name, c.rankAt(int(c.Rank)), c.World, end.want, end.got)
		}
	}
	return c, nil
}

// rankAt returns the rank at a place of the ring, counted around it.
func (c Config) rankAt(place int) Rank {
	if place = mod(place, c.World); c.Ranks != nil {
		return c.Ranks[place]
	}
	return Rank(place)
}

// Ring is one rank's part in the collectives of one generation. All ranks start the same
// collectives, on buffers of the same length, in the same order. One goroutine at a time calls a
// Ring. One goroutine waits for a [Pending]; it may be another.
//
// A collective that fails for any reason but a wrong argument leaves its buffer undefined and
// breaks the ring. The ring tells its neighbours, so all ranks fail within a moment. Queued
// collectives and later calls return the same error. The link may read the buffer and Carry.Out
// until Close has returned, so the caller must not write to them before. The ring itself writes to
// no buffer after its call has returned.
type Ring struct {
	queue
	sender   sender
	receiver receiver
	guard    guard
	trees    trees

	closing sync.Once
	running sync.WaitGroup
}

// leaveGrace is how long Close waits for the sender while the successor has no room for a
// heartbeat, so that the chunks before it still arrive.
const leaveGrace = 250 * time.Millisecond

// New returns the ring of one rank and starts its goroutines. The ring then owns the links and
// closes them. A ring of one has no links.
func New(config Config, links Links) (*Ring, error) {
	config, err := config.validate(links)
	if err != nil {
		return nil, err
	}
	r := &Ring{queue: queue{
		failure:   failure{failed: make(chan struct{})},
		config:    config,
		heartbeat: Header{Generation: config.Generation, Phase: Heartbeat},
		epoch:     time.Now(),
		sending:   half{wake: make(chan struct{}, 1)},
		receiving: half{wake: make(chan struct{}, 1)},
		room:      make(chan struct{}, MaxQueued),
		stop:      make(chan struct{}),
	}}
	reduced := make(chan struct{}, 1)
	r.sender = sender{queue: &r.queue, link: links.Successor, reduced: reduced,
		ended: make(chan struct{})}
	r.receiver = receiver{queue: &r.queue, link: links.Predecessor, reduced: reduced,
		passing: &r.sender.passing}
	r.guard = guard{queue: &r.queue, receiver: &r.receiver, before: links.Predecessor,
		after: links.Successor, due: config.ChunkTimeout, ended: make(chan struct{}),
		judged: make(chan struct{})}
	if config.World > 1 {
		r.running.Go(r.guard.run)
		r.running.Go(r.sender.run)
		r.running.Go(r.receiver.run)
	}
	return r, nil
}

// Timing holds how long a rank's collectives have waited for its neighbours since the ring began.
type Timing struct {
	// Sending is the time waited for the successor, or its link, to take chunks.
	Sending time.Duration
	// Waiting is the time waited for the predecessor's chunks.
	Waiting time.Duration
}

// Timing returns the waits of all collectives that have ended. They never decrease.
func (r *Ring) Timing() Timing {
	return Timing{
		Sending: time.Duration(r.sending.total.Load()),
		Waiting: time.Duration(r.receiving.total.Load()),
	}
}

// Silent returns the neighbour, if any, from which nothing had come for most of ChunkTimeout when
// the ring broke, whatever broke it. The ring is broken.
func (r *Ring) Silent() (peer Peer, found bool) {
	if r.config.World == 1 {
		return Peer{}, false
	}
	select {
	case <-r.guard.judged:
		return r.guard.silent.peer, r.guard.silent.found
	case <-r.guard.ended: // it was closed before
		return Peer{}, false
	}
}

// Close leaves the ring and closes its links. It breaks off unfinished collectives, and returns
// when all goroutines of the ring have ended.
func (r *Ring) Close() error {
	var err error
	r.closing.Do(func() {
		if r.shut() {
			r.Break(fmt.Errorf("the ring was %w during a collective", ErrClosed))
		}
		close(r.stop)
		if r.config.World > 1 {
			err = r.leave()
		}
	})
	return err
}

// leave closes the predecessor's link first, because a neighbour may wait on it and the receiver
// listens on it. The successor's link, which may make this rank wait, comes second.
func (r *Ring) leave() error {
	<-r.guard.ended // it may still be sending the abort to the neighbours
	err := r.receiver.link.Close()
	grace := time.NewTimer(leaveGrace)
	defer grace.Stop()
	select {
	case <-r.sender.ended:
	case <-grace.C:
	}
	err = errors.Join(err, r.sender.link.Close())
	r.running.Wait()
	return err
}
