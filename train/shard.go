package train

import (
	"context"
	"fmt"

	"rondo/compute"
	"rondo/train/agree"
)

// With Config.ShardCopies the ranks share out what the optimizer keeps, each parameter's slots, by
// ranges of the parameters: the first stage of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054). A
// step's gradient is reduce-scattered, so that each rank has the sum of its own range; it updates
// the parameters of that range alone, and all gather the parameters. The bytes on the wire are an
// all-reduce's: half of one, and the other half.
//
// Until a step is committed, the parameters of the step before stay as they are: the new ones are
// gathered where the gradient was. With two copies the slots stay, too, and each rank keeps those
// of its predecessor's range beside its own. It is sent the summed gradient of that range, so that
// a rank that is lost takes nothing with it. What a step does to the slots is logged, as the
// gradient by which it is done, and done when the step is committed: a rank that did not hear of
// that has the log, and catches up when the next ring begins.
//
// With one copy there is no log: a rank changes its slots before the others can know. Where a ring
// breaks just there, as where a rank is lost, the ranks go back to a checkpoint.

// Scatterer is what the sum of a gradient takes where the optimizer is shared out.
type Scatterer interface {
	Peers
	// AllReduceCarry is AllReduce. Before it, each rank's out fills its successor's in: no rank
	// completes it before every rank's in is complete.
	AllReduceCarry(ctx context.Context, buf, out, in []float32) error
	// ReduceScatter gives rank i the sum over the ranks of buf[ends[i-1]:ends[i]], which may be
	// empty. What the rest of buf then holds is not defined.
	ReduceScatter(ctx context.Context, buf []float32, ends []int) error
}

// MaxShardCopies is the most ranks that keep the slots of a range.
const MaxShardCopies = 2

const (
	// shardUnit is what ranges are multiples of: 64 bytes, as devices have it.
	shardUnit = 16
	// shardBlock is how much of a range is updated at once in host memory: what that passes
	// through stays in a core's cache.
	shardBlock = 1 << 16
)

// version is a step and the ring that it was completed in. The zero value is none.
type version = agree.Version

// holding is what the optimizer keeps of the parameters [first, end).
type holding struct {
	first, end int
	slots      [][]float32 // each [end-first], device memory
	log        []float32   // the gradient that leads from shards.at to shards.next; nil: none
}

// shards is a rank's part of what the optimizer keeps.
type shards struct {
	copies int
	slots  int // of each parameter
	n      int // parameters, padding included
	block  int // floats that are updated at once

	ends    []int     // of the ranks' ranges
	held    []holding // of this rank's range and, with two copies, its predecessor's
	at      version   // of held
	next    version   // the step that is to be committed, by the log or, skipped, by nothing
	skipped bool
	rule    compute.Update // of the log
	norm    float64        // of that step's summed gradient

	// whole are the slots of all parameters, [slots][n], host memory: where a checkpoint is read or
	// written, and between two rings that everybody has agreed to.
	whole   [][]float32
	wholeAt version

	passages []passage   // how the slots get to where the ring wants them
	scratch  [][]float32 // of parameters and slots, each [block], device memory
	incoming []float32   // of the predecessor's range, where host memory is not the device's
	piece    []float32   // what passes from rank to rank, host memory
	giver    []int       // the ends of a gathering to which one rank gives
	verdict  []float32
}

// newShards returns the part of a rank that has none yet; nil: the optimizer is not shared out.
func (t *batch) newShards(n int) *shards {
	if t.cfg.ShardCopies == 0 {
		return nil
	}
	s := &shards{copies: t.cfg.ShardCopies, slots: t.innerSlots(), n: n, block: pieceFloats}
	if t.cfg.HostMemory {
		s.block = shardBlock
	}
	s.block = min(s.block, n)
	for range 1 + s.slots {
		s.scratch = append(s.scratch, t.dev.Alloc(s.block))
	}
	s.piece = make([]float32, min(n, pieceFloats))
	return s
}

// shardEnds are where the ranges of n floats end that are dealt to so many ranks.
func shardEnds(n, ranks int) []int {
	ends := make([]int, ranks)
	units := (n + shardUnit - 1) / shardUnit
	for rank := range ends {
		ends[rank] = min(n, units*(rank+1)/ranks*shardUnit)
	}
	return ends
}

// span is a rank's range.
func (s *shards) span(rank int) (first, end int) {
	if rank > 0 {
		first = s.ends[rank-1]
	}
	return first, s.ends[rank]
}

// keepers are the ranges whose slots a rank is to keep: its own first.
func (s *shards) keepers(rank int) [][2]int {
	first, end := s.span(rank)
	spans := [][2]int{{first, end}}
	if n := len(s.ends); s.copies > 1 && n > 1 {
		first, end = s.span((rank + n - 1) % n)
		spans = append(spans, [2]int{first, end})
	}
	return spans
}

// logs says whether steps are logged.
func (s *shards) logs() bool { return s.copies > 1 && s.slots > 0 }

// enterShards readies the shards for a ring, in which the exchange is.
func (t *batch) enterShards() {
	t.shards.ends = shardEnds(t.shards.n, len(t.ring.LaneEnds))
	if t.ring.Scatter != nil {
		t.exchange.sum = &shardedSum{noSum{}, t, t.ring.Scatter, 0}
		t.shards.verdict = make([]float32, verdictFloats*len(t.ring.LaneEnds))
	}
}

// newHoldings are zeros of what this rank is to keep in the ring.
func (t *batch) newHoldings() (held []holding, err error) {
	defer func() {
		if err != nil {
			t.freeHoldings(held)
			held = nil
			err = fmt.Errorf("this worker's part of what --optimizer keeps: %w", err)
		}
	}()
	defer compute.Catch(&err)
	s := t.shards
	for _, span := range s.keepers(t.ring.Rank) {
		h := holding{first: span[0], end: span[1]}
		if h.first < h.end {
			for range s.slots {
				h.slots = append(h.slots, t.dev.Alloc(h.end-h.first))
			}
			if s.logs() && t.ring.Peers != nil {
				h.log = t.dev.Alloc(h.end - h.first)
			}
		}
		held = append(held, h)
	}
	return held, nil
}

func (t *batch) freeHoldings(held []holding) {
	for _, h := range held {
		for _, x := range h.slots {
			t.dev.Free(x)
		}
		if h.log != nil {
			t.dev.Free(h.log)
		}
	}
}

// hold makes what was dealt in a ring this rank's part.
func (t *batch) hold(held []holding) {
	s := t.shards
	if t.records && t.seat != nil { // what it has recorded may update slots that are no more
		t.seat.Close()
		t.seat = nil
	}
	t.freeHoldings(s.held)
	s.held, s.at, s.next, s.whole = held, t.version(), version{}, nil
	if !t.cfg.HostMemory && len(held) > 1 && s.logs() {
		s.incoming = make([]float32, held[1].end-held[1].first)
	}
}

// version is that of this rank's parameters.
func (c *core) version() version { return version{Step: c.progress.Step, Ring: c.committed} }

// ownSlots are the slots of all parameters of a rank alone, as update takes them.
func (c *core) ownSlots() (slots [2][]float32) {
	from := c.slots
	if c.shards != nil {
		from = c.shards.held[0].slots
	}
	copy(slots[:], from[:c.innerSlots()])
	return slots
}

func (t *batch) closeShards() {
	if t.shards == nil {
		return
	}
	t.freeHoldings(t.shards.held)
	for _, x := range t.shards.scratch {
		t.dev.Free(x)
	}
	t.shards = nil
}
