package allreduce

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Layout is a rank's place in a hierarchy: which ranks it shares a host with, and which of the
// other hosts' ranks it sums with.
type Layout struct {
	// Host are the ranks on this rank's host, in order.
	Host []Rank
	// Across are the ranks, one of each host, that sum the same part as this one; nil where a host
	// has more ranks than the smallest, and this is one of those over.
	Across []Rank
	// Columns is how many parts there are: as many as the smallest host has ranks.
	Columns int
	// Hosts and Ranks are how many there are in all.
	Hosts, Ranks int
}

// NewLayout returns rank's place where rank i is on hosts[i].
func NewLayout(hosts []string, rank Rank) Layout {
	var names []string
	members := map[string][]Rank{}
	for i, host := range hosts {
		if members[host] == nil {
			names = append(names, host)
		}
		members[host] = append(members[host], Rank(i))
	}
	l := Layout{Host: members[hosts[rank]], Columns: len(hosts), Hosts: len(members),
		Ranks: len(hosts)}
	for _, ranks := range members {
		l.Columns = min(l.Columns, len(ranks))
	}
	if column := slices.Index(l.Host, rank); column < l.Columns {
		for _, name := range names {
			l.Across = append(l.Across, members[name][column])
		}
	}
	return l
}

// Pays reports whether a hierarchy is worth its steps within the hosts, one after the other with
// those across. For each of H hosts it sends 2(H-1)/H of a buffer, where a ring of N ranks whose
// hosts lie together sends 2(N-1)/N: a quarter less or better with two hosts, and about the same
// with many. There it is the latency of 2(N-1) steps that it saves, from thousands of ranks on
// (`rondo bench simulate`). Each host must have two ranks or more.
func (l Layout) Pays() bool {
	hosts, ranks := l.Hosts, l.Ranks
	fewer := 4*(hosts-1)*ranks <= 3*hosts*(ranks-1)
	return l.Columns > 1 && hosts > 1 && (fewer || ranks >= manyRanks)
}

// leastBlock is how many floats a block has at least.
const leastBlock = 1 << 20

// Block is how many floats of a buffer are summed at a time: while one block's sums cross between
// hosts, the next is summed within. Each block costs the messages of both rings, so it grows with
// the ranks: its chunks are not shorter than those that a ring cuts for the sake of its pipeline.
func (l Layout) Block() int {
	return max(leastBlock, l.Ranks*(leastChunkBytes/Float32.Bytes()))
}

// manyRanks is from how many ranks on a ring of all is slower for its latency alone.
const manyRanks = 2048

// Hierarchy is one rank's part in sums that go within hosts first. Of each block of a buffer the
// ranks of a host reduce-scatter, by a ring of their own, so that each has the host's sum of one
// part; the ranks that have the same part all-reduce it, by a ring across the hosts; and the host's
// ring all-gathers the parts. This is the hierarchy of Jia et al., "Highly scalable deep learning
// training system with mixed-precision" (arXiv:1807.11205), with as many leaders on a host as the
// smallest host has ranks.
//
// Cost for B bytes on H hosts of M ranks:
//
//	within a host   2(M-1) steps, 2(M-1)/M * B bytes for each rank
//	across hosts    2(H-1) steps, 2(H-1)/H * B bytes for each host
//
// A part's sum is made by one chain of ranks, and copied, so that all ranks end with the same bits.
// All ranks begin sums of the same lengths in the same order, one goroutine at a time.
type Hierarchy struct {
	host    *Ring
	across  *Ring // nil: this rank sums no part with other hosts
	columns int
	block   int   // floats that are summed at a time
	ends    []int // where each rank of the host's part ends, in a block

	queue   chan *Summing
	closed  chan struct{}
	closing sync.Once
	running sync.WaitGroup
}

// Summing is a sum of a [Hierarchy] that has begun.
type Summing struct {
	hierarchy *Hierarchy
	sum       Sum
	done      chan error // gets one
}

// maxBegun bounds the sums of a hierarchy that have begun, beyond which Start waits.
const maxBegun = 64

// NewHierarchy returns the sums of a rank over its rings. They stay the caller's; a failure of one
// is to break all of them ([Bind]). across is nil where the layout has none.
func NewHierarchy(layout Layout, host, across *Ring) (*Hierarchy, error) {
	switch {
	case host.config.World != len(layout.Host):
		return nil, fmt.Errorf("hierarchy: the host has %d ranks, its ring %d", len(layout.Host),
			host.config.World)
	case (across == nil) != (layout.Across == nil),
		across != nil && across.config.World != len(layout.Across):
		return nil, fmt.Errorf("hierarchy: %d hosts sum this rank's part, and that is not what "+
			"the ring across them has", len(layout.Across))
	}
	h := &Hierarchy{host: host, across: across, columns: layout.Columns, block: layout.Block(),
		ends: make([]int, host.config.World), queue: make(chan *Summing, maxBegun),
		closed: make(chan struct{})}
	h.running.Go(h.run)
	return h, nil
}

// WithinHost and AcrossHosts are how the rings of a hierarchy wait, of ranks that wait for a step
// as c has it. Who waits for another host may wait for a rank there that waits itself, as does who
// gathers what others have summed across: neither must accuse the one it waits for before those
// speak who wait for the one that is stuck, also if they have come later.
func (c Config) WithinHost() Config {
	c.GatherTimeout = 2 * c.StepTimeout
	return c
}

// AcrossHosts is of a ring across hosts: see [Config.WithinHost].
func (c Config) AcrossHosts() Config {
	c.StepTimeout += c.StepTimeout / 2
	return c
}

// run does the sums one by one. They end when the rings break, if not before.
func (h *Hierarchy) run() {
	for {
		select {
		case s := <-h.queue:
			s.done <- h.add(context.Background(), s.sum)
		case <-h.closed:
			return
		}
	}
}

// Close ends the goroutine of the hierarchy. A sum that is under way ends first, so that the rings
// are broken or its ranks have come; those behind it are never done.
func (h *Hierarchy) Close() {
	h.closing.Do(func() { close(h.closed) })
	h.running.Wait()
}

// Start begins a sum as [Ring.Start] does, of s.Buf over all ranks of the hierarchy. What crosses
// between hosts is of s.Element, and its residual in those ranges of s.Residual that this rank
// sums; within a host all is float32. What s.Residual has elsewhere is from a ring in which this
// rank rounded other parts: it is added to Buf, so that it goes to who sums them now, and cleared.
// There is no carry. Close must not run beside it.
func (h *Hierarchy) Start(ctx context.Context, s Sum) (*Summing, error) {
	if len(s.Carry.In)+len(s.Carry.Out) > 0 {
		return nil, fmt.Errorf("hierarchy: a sum of it has no carry")
	}
	if isClosed(h.closed) {
		return nil, fmt.Errorf("hierarchy: %w", ErrClosed)
	}
	p := &Summing{h, s, make(chan error, 1)}
	select {
	case h.queue <- p:
		return p, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Wait waits for the sum. When ctx ends the rings break, as a [Ring] does: Buf is the caller's
// again after a success, and after Close and those of the rings else.
func (s *Summing) Wait(ctx context.Context) error {
	select {
	case err := <-s.done:
		return err
	case <-s.hierarchy.closed:
	case <-ctx.Done():
	}
	select {
	case err := <-s.done: // both have come
		return err
	default:
	}
	if ctx.Err() == nil {
		return fmt.Errorf("hierarchy: %w", ErrClosed)
	}
	s.hierarchy.host.Break(context.Cause(ctx))
	return context.Cause(ctx)
}

// part is what of a block of n floats a rank of the host sums with other hosts: [lo, hi).
func (h *Hierarchy) part(n int) (lo, hi int) {
	for place := range h.ends {
		h.ends[place] = n * min(place+1, h.columns) / h.columns
	}
	place := int(h.host.config.Rank)
	if place > 0 {
		lo = h.ends[place-1]
	}
	return lo, h.ends[place]
}

// add sums all blocks of a buffer.
func (h *Hierarchy) add(ctx context.Context, s Sum) error {
	var before block // on its way between the hosts
	for at := 0; at < len(s.Buf)+h.block; at += h.block {
		var next block
		if at < len(s.Buf) {
			var err error
			if next, err = h.cross(ctx, s, at); err != nil {
				return err
			}
		}
		if err := h.collect(ctx, before); err != nil {
			return err
		}
		before = next
	}
	return nil
}

// block is a range of a buffer that is being summed.
type block struct {
	buf     []float32
	pending *Pending // of this rank's part; nil: it has none
}

// cross sums the block of s that begins at a number within the host, and begins to sum this rank's
// part of it with the other hosts.
func (h *Hierarchy) cross(ctx context.Context, s Sum, at int) (block, error) {
	end := min(at+h.block, len(s.Buf))
	b := block{buf: s.Buf[at:end]}
	lo, hi := h.part(len(b.buf))
	if s.Residual != nil {
		residual, keeps := s.Residual[at:end], hi
		if h.across == nil || h.across.config.World == 1 { // it rounds nothing
			keeps = lo
		}
		release(b.buf[:lo], residual[:lo])
		release(b.buf[keeps:], residual[keeps:])
	}
	if err := h.host.ReduceScatter(ctx, b.buf, h.ends); err != nil || h.across == nil {
		return b, err
	}
	part := Sum{Buf: b.buf[lo:hi], Element: s.Element}
	if s.Residual != nil {
		part.Residual = s.Residual[at:end][lo:hi]
	}
	var err error
	b.pending, err = h.across.Start(ctx, part)
	return b, err
}

// release adds a residual to what it was withheld from.
func release(buf, residual []float32) {
	add(buf, Bytes(residual))
	clear(residual)
}

// collect waits for a block's parts and gives all of them to every rank of the host.
func (h *Hierarchy) collect(ctx context.Context, b block) error {
	if b.pending != nil {
		if err := b.pending.Wait(ctx); err != nil {
			return err
		}
	}
	h.part(len(b.buf))
	return h.host.AllGather(ctx, b.buf, h.ends)
}

// Bind has each of the rings break when one of them does, for the same reason. It returns what ends
// that, and waits until it has.
func Bind(rings ...*Ring) (release func()) {
	over := make(chan struct{})
	var watching sync.WaitGroup
	for _, ring := range rings {
		watching.Go(func() {
			select {
			case <-ring.Broken():
				for _, other := range rings {
					other.Break(ring.Err())
				}
			case <-over:
			}
		})
	}
	return sync.OnceFunc(func() {
		close(over)
		watching.Wait()
	})
}
