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
	Rank       Rank // this rank's place in the ring
	World      int  // ranks in the ring, 1 to MaxWorld
	Generation Generation

	// Ranks are, in order, what errors call the members of a ring that only some of a
	// generation's ranks are in, and what its links do; nil: each is called by its place.
	Ranks []Rank

	// ChunkBytes is the payload of a message at most, a multiple of 4; 0 is MaxChunkBytes.
	ChunkBytes int

	// ChunkTimeout is how long nothing at all may come from a neighbour, in a collective or
	// between two, before it is taken for dead. Each rank sends both its neighbours a sign of
	// life four times in it, so it must be longer than one chunk takes on the slowest link.
	ChunkTimeout time.Duration

	// StepTimeout is how long a rank waits in a collective for a chunk, or for its own to be
	// taken, while the neighbour shows signs of life, and up to a quarter more in later ring
	// steps. The first chunk of a collective waits for the slowest rank to get there, so this
	// must be longer than the ranks' steps may differ, and longer than ChunkTimeout. A neighbour
	// from which nothing has come yet, as its own ring is still being formed, has this long too.
	StepTimeout time.Duration
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

// Ring is one rank's part in the collectives of one generation. All ranks call the same
// collectives with buffers of the same length in the same order; one goroutine at a time calls
// them on a Ring.
//
// A collective that returns an error, but for a wrong argument, has left its buffer in no
// defined state and the ring broken: the neighbours are told, so that all ranks fail within a
// moment, and later calls return the same error. The link may go on reading the buffer, and
// Carry.Out, until Close has returned: until then the caller must not write to them. The ring
// itself writes to no buffer after its call has returned.
type Ring struct {
	config Config
	links  Links
	sender
	receiver
	heartbeat Header

	turn     chan struct{} // held by the collective that runs, and for ever by Close
	finished chan struct{} // a token from each half when its part of a collective ends
	epoch    time.Time     // what the halves' times count from
	planning sync.Mutex    // held to write the plan, and by the guard, which judges by it
	plan     schedule      // of the collective that runs
	sequence uint64
	segments []int // ends of an all-reduce's segments

	failed  chan struct{} // closed by the first failure, after err is set
	failing sync.Once
	err     error

	closed  chan struct{} // closed by Close at once
	stop    chan struct{} // closed by Close when no collective runs
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
		sender: sender{
			sendStart: make(chan part, 1),
			sendEnded: make(chan struct{}),
		},
		receiver: receiver{
			receiveStart: make(chan part, 1),
			advanced:     make(chan struct{}, 1),
		},
		heartbeat: Header{Generation: config.Generation, Phase: Heartbeat},
		turn:      make(chan struct{}, 1),
		finished:  make(chan struct{}, 2),
		epoch:     time.Now(),
		segments:  make([]int, config.World),
		failed:    make(chan struct{}),
		closed:    make(chan struct{}),
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

// AllReduce replaces buf on every rank by the sum over the ranks, the same bits everywhere. It
// takes 2(N-1) steps and sends 2(N-1)/N of buf's bytes.
func (r *Ring) AllReduce(ctx context.Context, buf []float32) error {
	return r.AllReduceCarry(ctx, buf, Carry{})
}

// Carry is what travels one place along the ring ahead of a sum: Out goes to the successor, In
// is filled with what the predecessor hands out, which must be of In's length.
//
// Both are the ring's while the collective runs. In is the caller's again when it returns, even
// with an error; it may then be complete, in part or untouched. Out is the caller's to write to
// as the buffer is: at once after a success, after Close else.
type Carry struct {
	Out, In []float32
}

// minCarryingFloats is the shortest sum behind a carry. Of two floats each rank receives at
// least one before any rank can know the sum; a single one's sum is known to a rank whose
// successor has not received anything.
const minCarryingFloats = 2

// AllReduceCarry is [Ring.AllReduce] with a carry ahead of it on the same stream. It adds neither
// a step nor a wait: the sum follows behind the carry. When any rank completes the sum, every
// rank's In is complete, whatever breaks then. Behind a carry on any rank the sum has at least 2
// floats. In a ring of one Out is ignored, and In must be empty.
func (r *Ring) AllReduceCarry(ctx context.Context, buf []float32, carry Carry) error {
	switch {
	case r.config.World == 1 && len(carry.In) > 0:
		return fmt.Errorf("all-reduce: a ring of one carries nothing in, %d floats are expected",
			len(carry.In))
	case r.config.World > 1 && len(carry.Out)+len(carry.In) > 0 && len(buf) < minCarryingFloats:
		return fmt.Errorf("all-reduce: a carry ahead of %d floats, want at least %d",
			len(buf), minCarryingFloats)
	}
	return r.collective(ctx, 0, 2*(r.config.World-1), buf, nil, carry)
}

// AllGather gives every rank what each one has: rank i contributes buf[ends[i-1]:ends[i]], which
// may be empty, and exactly these bits arrive. It takes N-1 steps and sends all of buf but the
// successor's range. ends is the same on all ranks.
func (r *Ring) AllGather(ctx context.Context, buf []float32, ends []int) error {
	if err := r.checkRanges("all-gather", len(buf), ends); err != nil {
		return err
	}
	return r.collective(ctx, r.config.World-1, 2*(r.config.World-1), buf, ends, Carry{})
}

// ReduceScatter gives every rank the sum over the ranks of its own range: rank i's is
// buf[ends[i-1]:ends[i]], which may be empty. What the rest of buf then holds is not defined. It is
// the first half of an all-reduce, as [Ring.AllGather] is the second: it takes N-1 steps and sends
// all of buf but this rank's range. ends is the same on all ranks.
func (r *Ring) ReduceScatter(ctx context.Context, buf []float32, ends []int) error {
	if err := r.checkRanges("reduce-scatter", len(buf), ends); err != nil {
		return err
	}
	return r.collective(ctx, 0, r.config.World-1, buf, ends, Carry{})
}

// checkRanges holds ends to be as many ranges as there are ranks, which tile floats.
func (r *Ring) checkRanges(what string, floats int, ends []int) error {
	if len(ends) != r.config.World {
		return fmt.Errorf("%s: %d ranges for %d ranks", what, len(ends), r.config.World)
	}
	at := 0
	for i, end := range ends {
		if end < at {
			return fmt.Errorf("%s: range of rank %d is [%d:%d]", what, i, at, end)
		}
		at = end
	}
	if at != floats {
		return fmt.Errorf("%s: ranges end at %d, the buffer at %d", what, at, floats)
	}
	return nil
}

// collective runs the ring steps [first, last), and returns when both halves are done with buf.
// Without ends the segments are of one length, as near as may be.
func (r *Ring) collective(
	ctx context.Context, first, last int, buf []float32, ends []int, carry Carry,
) error {
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
	plan := schedule{
		header: Header{
			Generation: r.config.Generation,
			Sequence:   r.sequence,
			Total:      len(buf),
		},
		rank:  int(r.config.Rank),
		world: r.config.World,
		chunk: r.config.ChunkBytes / 4,
		first: first,
		last:  last,
		ends:  ends,
	}
	receives := plan.receives() || len(carry.In) > 0
	r.begin(plan, receives)
	if receives {
		r.receiveStart <- part{buf, carry.In}
	} else { // the receiver listens for what comes after this collective
		r.finished <- struct{}{}
	}
	r.sendStart <- part{buf, carry.Out}
	r.await(ctx)
	return r.Err()
}

// begin makes plan the ring's; from now on the waits of the halves that take part are judged.
func (r *Ring) begin(plan schedule, receives bool) {
	r.planning.Lock()
	defer r.planning.Unlock()
	r.plan = plan
	r.reduced.Store(0)
	now := r.now()
	if receives {
		r.receiving.wait(now, plan.first, 0)
	}
	r.sending.wait(now, plan.first, 0)
}

// await waits for both halves, and fails the ring when ctx ends.
func (r *Ring) await(ctx context.Context) {
	done := ctx.Done()
	for running := 2; running > 0; {
		select {
		case <-r.finished:
			running--
		case <-done:
			done = nil
			r.fail(fmt.Errorf("collective %d: %w", r.sequence, context.Cause(ctx)))
		}
	}
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
