package allreduce

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Layout is a rank's place in a hierarchy of hosts.
type Layout struct {
	// Host lists the ranks on this rank's host, in order.
	Host []Rank
	// Across lists the ranks, one of each host, that sum the same part as this one. It is nil for a
	// rank beyond the first Columns of its host.
	Across []Rank
	// Columns is the number of parts: the number of ranks on the smallest host.
	Columns int
	// Hosts and Ranks are the totals of the hierarchy.
	Hosts, Ranks int
}

// NewLayout returns rank's layout. hosts[i] is the host of rank i.
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

// Pays reports whether a hierarchy is faster than one ring. Its steps within hosts and across them
// add up. Across H hosts it sends 2(H-1)/H of a buffer per host. A ring of N ranks whose hosts'
// ranks are neighbours sends 2(N-1)/N. The hierarchy pays where that saves a quarter, as with two
// hosts. With many hosts the bytes are about the same, and only the latency of 2(N-1) steps is
// saved, which pays from thousands of ranks on (`rondo bench simulate`). Each host must have two
// ranks or more.
func (l Layout) Pays() bool {
	hosts, ranks := l.Hosts, l.Ranks
	fewer := 4*(hosts-1)*ranks <= 3*hosts*(ranks-1)
	return l.Columns > 1 && hosts > 1 && (fewer || ranks >= manyRanks)
}

// leastBlock is the smallest block, in floats.
const leastBlock = 1 << 20

// Block returns the number of floats that are summed at a time. While one block's sums cross
// between hosts, the next is summed within them. Each block costs the messages of both rings, so it
// grows with the ranks: its chunks stay as long as leastChunkBytes.
func (l Layout) Block() int {
	return max(leastBlock, l.Ranks*(leastChunkBytes/Float32.Bytes()))
}

// manyRanks is the number of ranks from which the latency alone makes one ring of all slower.
const manyRanks = 2048

// Hierarchy is one rank's part in sums that go within hosts first. For each block of a buffer, the
// host's ring reduce-scatters, so that each rank has the host's sum of one part. The ranks with the
// same part all-reduce it in a ring across the hosts. The host's ring then all-gathers the parts.
// This is the hierarchy of Jia et al., "Highly scalable deep learning training system with
// mixed-precision" (arXiv:1807.11205), with one leader per part: as many as the smallest host has
// ranks.
//
// Cost for B bytes on H hosts of M ranks:
//
//	within a host   2(M-1) steps, 2(M-1)/M * B bytes for each rank
//	across hosts    2(H-1) steps, 2(H-1)/H * B bytes for each host
//
// One chain of ranks makes a part's sum, and the others copy it, so all ranks end with the same
// bits. All ranks begin sums of the same lengths in the same order, one goroutine at a time.
type Hierarchy struct {
	host    *Ring
	across  *Ring // nil: this rank sums no part with other hosts
	columns int
	block   int   // floats summed at a time
	ends    []int // of the parts of the host's ranks, in a block

	queue   chan *Summing
	closed  chan struct{}
	closing sync.Once
	running sync.WaitGroup
}

// Summing is a sum of a [Hierarchy] that has been started.
type Summing struct {
	hierarchy *Hierarchy
	sum       Sum
	done      chan error // receives the sum's result once
}

// maxBegun is the number of queued sums beyond which Start waits.
const maxBegun = 64

// NewHierarchy returns a rank's hierarchy over its rings. The caller still owns the rings, and must
// break all of them when one fails ([Bind]). across is nil if the layout has none.
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

// WithinHost returns the limits of a ring within a host, given those of a plain ring. Ranks of a
// host may wait for one that itself waits for another host. The longer limits of WithinHost and
// [Config.AcrossHosts] let the neighbours of a stuck rank accuse it first, even if their own wait
// began later.
func (c Config) WithinHost() Config {
	c.GatherTimeout = 2 * c.StepTimeout
	return c
}

// AcrossHosts returns the limits of a ring across hosts: see [Config.WithinHost].
func (c Config) AcrossHosts() Config {
	c.StepTimeout += c.StepTimeout / 2
	return c
}

// run does the sums in order. A broken ring ends the current one.
func (h *Hierarchy) run() {
	for {
		select {
		case s := <-h.queue:
			err := h.add(context.Background(), s.sum)
			s.sum.end()
			s.done <- err
		case <-h.closed:
			return
		}
	}
}

// Close ends the hierarchy's goroutine. The current sum ends first, by success or because the rings
// break. Queued sums are not done.
func (h *Hierarchy) Close() {
	h.closing.Do(func() { close(h.closed) })
	h.running.Wait()
}

// Start begins a sum of s.Buf over all ranks of the hierarchy, as [Ring.Start] does. Numbers travel
// as s.Element across hosts and as float32 within a host, so s.Residual keeps the rounding errors
// of this rank's part only. Errors elsewhere in s.Residual come from a ring in which this rank
// rounded other parts. They are added to Buf and cleared. s has no carry. Close must not run at the
// same time.
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

// Wait waits for the sum. If ctx ends first, the host's ring breaks. Buf is the caller's again
// after a success; after an error only when the hierarchy and its rings are closed.
func (s *Summing) Wait(ctx context.Context) error {
	select {
	case err := <-s.done:
		return err
	case <-s.hierarchy.closed:
	case <-ctx.Done():
	}
	select {
	case err := <-s.done: // the sum is complete: its result counts
		return err
	default:
	}
	if ctx.Err() == nil {
		return fmt.Errorf("hierarchy: %w", ErrClosed)
	}
	s.hierarchy.host.Break(context.Cause(ctx))
	return context.Cause(ctx)
}

// part returns the range [lo, hi) of a block of n floats that this rank sums with other hosts. It
// also sets h.ends for blocks of this length.
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

func (h *Hierarchy) add(ctx context.Context, s Sum) error {
	var before block // being summed across hosts
	for at := 0; at < len(s.Buf)+h.block; at += h.block {
		var next block
		if at < len(s.Buf) {
			var err error
			if next, err = h.startBlock(ctx, s, at); err != nil {
				return err
			}
		}
		if err := h.finishBlock(ctx, before); err != nil {
			return err
		}
		before = next
	}
	return nil
}

// block is a range of a buffer that is being summed.
type block struct {
	buf     []float32
	pending *Pending // sum of this rank's part; nil: it has none
}

// startBlock sums the block of s from at on within the host, and starts the sum of this rank's part
// across hosts.
func (h *Hierarchy) startBlock(ctx context.Context, s Sum, at int) (block, error) {
	end := min(at+h.block, len(s.Buf))
	b := block{buf: s.Buf[at:end]}
	lo, hi := h.part(len(b.buf))
	if s.Residual != nil {
		residual, keeps := s.Residual[at:end], hi
		if h.across == nil || h.across.config.World == 1 { // nothing is rounded
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

// release adds a residual to the numbers that it was withheld from, and clears it.
func release(buf, residual []float32) {
	add(buf, Bytes(residual))
	clear(residual)
}

// finishBlock waits for this rank's part of a block and all-gathers the parts within the host.
func (h *Hierarchy) finishBlock(ctx context.Context, b block) error {
	if b.pending != nil {
		if err := b.pending.Wait(ctx); err != nil {
			return err
		}
	}
	h.part(len(b.buf))
	return h.host.AllGather(ctx, b.buf, h.ends)
}

// Bind breaks all of the rings when one of them breaks, for the same reason. The function returned
// ends that, and waits for Bind's goroutines.
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
