package allreduce

import (
	"context"
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
	Rank       Rank
	World      int // ranks in the ring, 1 to MaxWorld
	Generation Generation

	// ChunkBytes is the payload of a message at most, a multiple of 4; 0 is MaxChunkBytes.
	ChunkBytes int

	// ChunkTimeout is how long a rank waits for the next chunk, or for its own to be taken, and
	// up to a quarter more in later ring steps. The first chunk of a collective waits for
	// the slowest rank to get there, so this must be longer than the ranks' steps may differ.
	ChunkTimeout time.Duration
}

func (c Config) validate(links Links) (Config, error) {
	if c.ChunkBytes == 0 {
		c.ChunkBytes = MaxChunkBytes
	}
	switch {
	case c.World < 1 || c.World > MaxWorld:
		return c, fmt.Errorf("ring: world %d is not 1 to %d", c.World, MaxWorld)
	case c.Rank < 0 || int(c.Rank) >= c.World:
		return c, fmt.Errorf("ring: rank %d is not 0 to %d", c.Rank, c.World-1)
	case c.ChunkBytes < 4 || c.ChunkBytes > MaxChunkBytes || c.ChunkBytes%4 != 0:
		return c, fmt.Errorf("ring: chunks of %d bytes: want a multiple of 4, at most %d",
			c.ChunkBytes, MaxChunkBytes)
	case c.ChunkTimeout <= 0:
		return c, fmt.Errorf("ring: chunk timeout %v is not positive", c.ChunkTimeout)
	case c.World == 1 && links != (Links{}):
		return c, errors.New("ring: a ring of one has no links")
	case c.World > 1 && (links.Predecessor == nil || links.Successor == nil):
		return c, fmt.Errorf("ring: rank %d of %d needs two links", c.Rank, c.World)
	}
	if c.World == 1 {
		return c, nil
	}
	for _, end := range []struct {
		name string
		got  Rank
		want int
	}{
		{"predecessor", links.Predecessor.Peer().Rank, mod(int(c.Rank)-1, c.World)},
		{"successor", links.Successor.Peer().Rank, mod(int(c.Rank)+1, c.World)},
	} {
		if int(end.got) != end.want {
			return c, fmt.Errorf("ring: the %s of rank %d of %d is rank %d, the link's is rank %d",
				end.name, c.Rank, c.World, end.want, end.got)
		}
	}
	return c, nil
}

// Ring is one rank's part in the collectives of one generation. All ranks call the same
// collectives with buffers of the same length in the same order; one goroutine at a time calls
// them on a Ring.
//
// A collective that returns an error, but for a wrong argument, has left its buffer in no
// defined state and the ring broken: the neighbours are told, so that all ranks fail within a
// moment, and later calls return the same error. The link may go on reading the buffer until
// Close has returned.
type Ring struct {
	config Config
	links  Links
	sender
	receiver

	turn     chan struct{} // held by the collective that runs, and for ever by Close
	finished chan struct{} // a token from each half when its part of a collective ends
	timer    *time.Timer   // of the watch over a collective
	epoch    time.Time     // what the halves' times count from
	plan     schedule      // of the collective that runs
	sequence uint64
	segments []int // ends of an all-reduce's segments

	failed  chan struct{} // closed by the first failure, after err is set
	failing sync.Once
	err     error

	closed  chan struct{} // closed by Close at once
	stop    chan struct{} // closed by Close when no collective runs
	closing sync.Once
	running sync.WaitGroup
}

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
		sender: sender{sendStart: make(chan []float32, 1)},
		receiver: receiver{
			receiveStart: make(chan []float32, 1),
			advanced:     make(chan struct{}, 1),
		},
		turn:     make(chan struct{}, 1),
		finished: make(chan struct{}, 2),
		timer:    time.NewTimer(config.ChunkTimeout),
		epoch:    time.Now(),
		segments: make([]int, config.World),
		failed:   make(chan struct{}),
		closed:   make(chan struct{}),
		stop:     make(chan struct{}),
	}
	r.timer.Stop()
	if config.World > 1 {
		r.running.Go(r.guard)
		r.running.Go(r.runSender)
		r.running.Go(r.runReceiver)
	}
	return r, nil
}

// AllReduce replaces buf on every rank by the sum over the ranks, the same bits everywhere. It
// takes 2(N-1) steps and sends 2(N-1)/N of buf's bytes.
func (r *Ring) AllReduce(ctx context.Context, buf []float32) error {
	return r.collective(ctx, 0, buf, nil)
}

// AllGather gives every rank what each one has: rank i contributes buf[ends[i-1]:ends[i]], which
// may be empty, and exactly these bits arrive. It takes N-1 steps and sends all of buf but the
// successor's range. ends is the same on all ranks.
func (r *Ring) AllGather(ctx context.Context, buf []float32, ends []int) error {
	if len(ends) != r.config.World {
		return fmt.Errorf("all-gather: %d ranges for %d ranks", len(ends), r.config.World)
	}
	at := 0
	for i, end := range ends {
		if end < at {
			return fmt.Errorf("all-gather: range of rank %d is [%d:%d]", i, at, end)
		}
		at = end
	}
	if at != len(buf) {
		return fmt.Errorf("all-gather: ranges end at %d, the buffer at %d", at, len(buf))
	}
	return r.collective(ctx, r.config.World-1, buf, ends)
}

// collective runs the ring steps from first on, and returns when both halves are done with buf.
// Without ends the segments are of one length, as near as may be.
func (r *Ring) collective(ctx context.Context, first int, buf []float32, ends []int) error {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	default:
		if isClosed(r.closed) {
			return r.closedError()
		}
		panic("allreduce: two collectives at once on one ring")
	}
	if err := r.Err(); err != nil {
		return err
	}
	r.sequence++
	if err := ctx.Err(); err != nil {
		r.fail(fmt.Errorf("collective %d: %w", r.sequence, context.Cause(ctx)))
		return r.Err()
	}
	if r.config.World == 1 || len(buf) == 0 {
		return nil
	}
	if ends == nil {
		split(r.segments, len(buf))
		ends = r.segments
	}
	r.plan = schedule{
		header: Header{
			Generation: r.config.Generation,
			Sequence:   r.sequence,
			Total:      len(buf),
		},
		rank:  int(r.config.Rank),
		world: r.config.World,
		chunk: r.config.ChunkBytes / 4,
		first: first,
		last:  2 * (r.config.World - 1),
		ends:  ends,
	}
	r.reduced.Store(0)
	r.receiveStart <- buf
	r.sendStart <- buf
	r.watch(ctx)
	return r.Err()
}

// Broken is closed when the ring breaks, in a collective or between two. Close does not break it.
func (r *Ring) Broken() <-chan struct{} { return r.failed }

// Err says why the ring is broken; it is nil while it is not.
func (r *Ring) Err() error {
	if isClosed(r.failed) {
		return r.err
	}
	return nil
}

// Close leaves the ring and closes its links. A collective that runs is broken off. It returns
// when all goroutines of the ring have ended.
func (r *Ring) Close() error {
	var err error
	r.closing.Do(func() {
		close(r.closed)
		select {
		case r.turn <- struct{}{}:
		default:
			r.fail(fmt.Errorf("the ring was %w during a collective", ErrClosed))
			r.turn <- struct{}{}
		}
		close(r.stop)
		r.running.Wait()
		if r.config.World > 1 {
			// First the end on which a neighbour may wait for us, then the one we may wait on.
			err = errors.Join(r.links.Predecessor.Close(), r.links.Successor.Close())
		}
	})
	return err
}

func (r *Ring) closedError() error {
	if err := r.Err(); err != nil {
		return err
	}
	return fmt.Errorf("ring of generation %d: %w", r.config.Generation, ErrClosed)
}
