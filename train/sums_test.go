package train

import (
	"time"

	"rondo/allreduce/compress"
	"rondo/compute"
	"rondo/sum"
	"rondo/sum/sharded"
	"rondo/train/agree"
)

// sumRing is one rank's part in a ring.
type (
	sumRing = sum.Ring
	Pending = sum.Pending
)

// parts selects the sum of a rank's ring.
type parts struct {
	ring   sumRing          // nil: there is one rank
	slots  Slots            // of this rank
	group  compute.Group    // nil: there is none
	summer *compress.Summer // nil: there is none
	heard  *recorder        // nil: no reports
}

// shared returns the configuration of a rank's trainer.
func (j job) shared() Config {
	if j.shardCopies > 0 {
		j.config.NewSlots = func(c agree.SlotsConfig) (Slots, error) {
			return sharded.New(j.shardCopies, c)
		}
	}
	return j.config
}

// over returns the ring with its sum.
func (j job) over(at Ring, p parts) Ring {
	if p.ring == nil {
		return at
	}
	at.Peers = p.ring
	at.NewSum = func(g *compute.Mirror, finishes []int, nodes func() [][]float32) (Sum, error) {
		c := sum.Config{Gradient: g, Finishes: finishes, Overlaps: j.config.Overlaps(),
			BucketBytes: j.bucketBytes, Ranks: len(at.LaneEnds), Now: time.Now}
		if p.heard != nil {
			c.Tuned = func(t sum.Tuning) { p.heard.tuned = append(p.heard.tuned, t) }
		}
		if j.tracer != nil && at.Rank == 0 {
			c.Trace = func(bucket string, began, ended time.Time) {
				j.tracer.Span(TrackRing, bucket, began, ended)
			}
		}
		own, shared := p.slots.(*sharded.Slots)
		switch {
		case shared:
			return own.NewSum(p.ring), nil
		case p.group != nil:
			return sum.NewGroup(g, p.ring, p.group), nil
		case p.summer != nil:
			return sum.NewCompressed(c, p.ring, p.summer, j.update), nil
		case j.config.Canonical:
			ends, err := sum.Leaves(at.LaneEnds, testG/j.config.LaneGroups)
			if err != nil {
				return nil, err
			}
			return sum.NewTree(c, p.ring, ends, nodes), nil
		}
		return sum.NewAround(c, p.ring), nil
	}
	return at
}
