package allreduce

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// MaxWorld is the largest ring.
const MaxWorld = 1 << 14

// Config is a rank's place in the ring and how it goes about a collective. All ranks have the
// same World, Generation and ChunkBytes.
type Config struct {
	Rank       Rank // this rank's place in the ring
	World      int  // ranks in the ring, 1 to MaxWorld
	Generation Generation

	// Ranks are, in order, what errors call the members of a ring that only some of a
	// generation's ranks are in, and what its links do; nil: each is called by its place.
	Ranks []Rank

	// ChunkBytes is the payload of a message at most, a multiple of 4; 0 is MaxChunkBytes. Short
	// segments are cut into smaller chunks, so that one is reduced while the next is on the way.
	ChunkBytes int

	// ChunkTimeout is how long nothing at all may come from a neighbour, in a collective or
	// between two, before it is taken for dead. Each rank sends both its neighbours a sign of
	// life four times in it, so it must be longer than one chunk takes on the slowest link.
	ChunkTimeout time.Duration

	// StepTimeout is how long a rank waits in a collective for a chunk, or for its own to be
	// taken, while the neighbour shows signs of life, and up to a quarter more in later ring
	// steps. The first chunk of a collective waits for the slowest rank to start it, so this must
	// be longer than the ranks' steps may differ, and longer than ChunkTimeout. Where collectives
	// are queued each has its own wait: it counts from when this rank has started the collective
	// and is done with the one before. So a rank may also take this long, and no longer, from one
	// Start to the next while the others wait in the later one. A neighbour from which nothing has
	// come yet, as its own ring is still being formed, has this long too.
	StepTimeout time.Duration
	// GatherTimeout is StepTimeout of an all-gather by itself; 0: the same.
	GatherTimeout time.Duration
}

// HeartbeatsPerChunkTimeout is how often a rank shows that it lives within ChunkTimeout.
const HeartbeatsPerChunkTimeout = 4

func (c Config) beatInterval() time.Duration { return c.ChunkTimeout / HeartbeatsPerChunkTimeout }

func (c Config) validate(links Links) (Config, error) {
	if c.ChunkBytes == 0 {
		c.ChunkBytes = MaxChunkBytes
	}
	switch {
	case !littleEndian():
		return c, errors.New("ring: this machine is big endian, which no ring knows")
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
		{"predecessor", links.Predecessor.Peer().Rank, c.called(int(c.Rank) - 1)},
		{"successor", links.Successor.Peer().Rank, c.called(int(c.Rank) + 1)},
	} {
		if end.got != end.want {
			return c, fmt.Errorf("ring: the %s of rank %d of %d is rank %d, the link's is rank %d",
				end.name, c.called(int(c.Rank)), c.World, end.want, end.got)
		}
	}
	return c, nil
}

// called is what the member at a place of the ring is called.
func (c Config) called(place int) Rank {
	if place = mod(place, c.World); c.Ranks != nil {
		return c.Ranks[place]
	}
	return Rank(place)
}

// Ring is one rank's part in the collectives of one generation. All ranks start the same
// collectives, on buffers of the same length, in the same order; one goroutine at a time calls a
// Ring. A [Pending] is waited for by one goroutine, which may be another.
//
// A collective that returns an error, but for a wrong argument, has left its buffer in no
// defined state and the ring broken: the neighbours are told, so that all ranks fail within a
// moment, and those that are queued behind it, and later calls, return the same error. The link may
// go on reading the buffer, and Carry.Out, until Close has returned: until then the caller must not
// write to them. The ring itself writes to no buffer after its call has returned.
type Ring struct {
	config Config
	links  Links
	queue
	sender
	receiver
	passing   passingChunks // from the receiver to the sender
	heartbeat Header
	epoch     time.Time // what the halves' times count from
	trees     trees

	failed  chan struct{} // closed by the first failure, after err is set
	failing sync.Once
	err     error

	stop    chan struct{} // closed by Close, after the queue takes no more
	closing sync.Once
	guarded chan struct{} // closed when the guard has ended
	running sync.WaitGroup
}

// leaveGrace is how long Close waits for a heartbeat that the successor has no room for, so that
// the chunks before it still arrive.
const leaveGrace = 250 * time.Millisecond

// New returns the ring of one rank and starts its goroutines. The ring owns the links from then
// on, and closes them. A ring of one has none.
func New(config Config, links Links) (*Ring, error) {
	config, err := config.validate(links)
	if err != nil {
		return nil, err
	}
	r := &Ring{
		config: config,
		links:  links,
		queue:  queue{room: make(chan struct{}, MaxQueued)},
		sender: sender{
			sending:   half{wake: make(chan struct{}, 1)},
			sendEnded: make(chan struct{}),
		},
		receiver: receiver{
			receiving: half{wake: make(chan struct{}, 1)},
			advanced:  make(chan struct{}, 1),
		},
		heartbeat: Header{Generation: config.Generation, Phase: Heartbeat},
		epoch:     time.Now(),
		failed:    make(chan struct{}),
		stop:      make(chan struct{}),
		guarded:   make(chan struct{}),
	}
	if config.World > 1 {
		r.running.Go(r.guard)
		r.running.Go(r.runSender)
		r.running.Go(r.runReceiver)
	}
	return r, nil
}

// now is the time since the ring began. It is never 0, which stands for no time at all.
func (r *Ring) now() time.Duration { return time.Since(r.epoch) + 1 }

// Timing is how long a rank's collectives have waited for its neighbours, since the ring began.
type Timing struct {
	// Sending is the wait for the successor, or the link to it, to take chunks.
	Sending time.Duration
	// Waiting is the wait for the predecessor's chunks.
	Waiting time.Duration
}

// Timing returns the waits of all collectives that have ended. It never decreases.
func (r *Ring) Timing() Timing {
	return Timing{
		Sending: time.Duration(r.sending.total.Load()),
		Waiting: time.Duration(r.receiving.total.Load()),
	}
}

// Break breaks the ring off: the neighbours are told why, as they are of any other failure. It
// does nothing on a ring that is broken. A rank that gives up a ring which some of its members
// may have left for dead breaks it before Close, which then waits for nobody.
func (r *Ring) Break(err error) { r.fail(err) }

// Broken is closed when the ring breaks, in a collective or between two. Close does not break it.
func (r *Ring) Broken() <-chan struct{} { return r.failed }

// Err says why the ring is broken; it is nil while it is not.
func (r *Ring) Err() error {
	if isClosed(r.failed) {
		return r.err
	}
	return nil
}

// Close leaves the ring and closes its links. Collectives that are on the way are broken off. It
// returns when all goroutines of the ring have ended.
func (r *Ring) Close() error {
	var err error
	r.closing.Do(func() {
		if r.shut() {
			r.fail(fmt.Errorf("the ring was %w during a collective", ErrClosed))
		}
		close(r.stop)
		if r.config.World > 1 {
			err = r.leave()
		}
	})
	return err
}

// leave closes the links: first the end on which a neighbour may wait for us, and on which the
// receiver listens, then the one we may wait on.
func (r *Ring) leave() error {
	<-r.guarded // it may be telling the neighbours why the ring is broken
	err := r.links.Predecessor.Close()
	grace := time.NewTimer(leaveGrace)
	defer grace.Stop()
	select {
	case <-r.sendEnded:
	case <-grace.C:
	}
	err = errors.Join(err, r.links.Successor.Close())
	r.running.Wait()
	return err
}

func (r *Ring) closedError() error {
	if err := r.Err(); err != nil {
		return err
	}
	return fmt.Errorf("ring of generation %d: %w", r.config.Generation, ErrClosed)
}
