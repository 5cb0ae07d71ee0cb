package worker

import (
	"context"
	"slices"
	"time"

	"rondo/allreduce"
	"rondo/allreduce/compress"
	"rondo/cluster"
	"rondo/compute"
	"rondo/job"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/sum"
	"rondo/train"
)

// newSummer makes what sums gradients with fewer bytes for a worker's whole life, if the job has
// asked for that.
func (e *engine) newSummer() error {
	spec, data := e.worker.spec, e.worker.data
	network, err := job.NetworkOf(spec, data.Extent())
	if err != nil {
		return err
	}
	how, err := job.SummerConfig(spec, network, job.Steps(spec, data))
	if err != nil || how == nil {
		return err
	}
	e.summer, err = compress.New(*how)
	return err
}

// trainRing is the plan's ring as the trainer takes it, but for the sum.
func (s *session) trainRing() train.Ring {
	ring := train.Ring{Rank: int(s.rank), Generation: int64(s.plan.Generation)}
	for i, m := range s.plan.Members {
		ring.LaneEnds = append(ring.LaneEnds, int(s.plan.LaneEnds[i]))
		ring.Names = append(ring.Names, m.Place())
	}
	if len(s.plan.Members) == 1 {
		return ring
	}
	ring.Reach = reach(s.plan.Members, int(s.spec.Copies))
	around := tieredRing{sum.Of(s.ring), s.tiers}
	ring.Peers = around
	ring.NewSum = func(
		g *compute.Mirror, finishes []int, nodes func() [][]float32,
	) (train.Sum, error) {
		return s.newSum(s.sumConfig(g, finishes), around, ring, nodes)
	}
	return ring
}

// reach returns to how many of its next ranks each rank sends its lanes' states, so that workers on
// so many other hosts have them, or so many ranks where there are fewer hosts.
func reach(members []cluster.Member, copies int) []int {
	n := len(members)
	far := make([]int, n)
	for rank := range far {
		far[rank] = min(copies, n-1)
		hosts := []string{members[rank].Host}
		for d := 1; d < n && len(hosts) <= copies; d++ {
			if host := members[(rank+d)%n].Host; !slices.Contains(hosts, host) {
				hosts, far[rank] = append(hosts, host), max(far[rank], d)
			}
		}
	}
	return far
}

// sumConfig is what the ring's sum is made with.
func (s *session) sumConfig(g *compute.Mirror, finishes []int) sum.Config {
	c := sum.Config{Gradient: g, Finishes: finishes, Overlaps: s.engine.overlaps,
		BucketBytes: s.spec.BucketBytes, Ranks: len(s.plan.Members), Now: time.Now,
		Tuned: func(t sum.Tuning) {
			s.log.Debug(t.String(), "generation", s.plan.Generation)
		}}
	if tracer := s.engine.tracer; tracer != nil {
		c.Trace = func(bucket string, began, ended time.Time) {
			tracer.Span(train.TrackRing, bucket, began, ended)
		}
	}
	return c
}

// newSum chooses how the ring sums gradients.
func (s *session) newSum(
	c sum.Config, around tieredRing, ring train.Ring, nodes func() [][]float32,
) (train.Sum, error) {
	switch summer := s.engine.summer; {
	case s.engine.slots != nil:
		return s.engine.slots.NewSum(around), nil
	case s.gpus.group != nil:
		return sum.NewGroup(c.Gradient, around, s.gpus.group), nil
	case jobspec.Canonical(s.spec):
		ends, err := sum.Leaves(ring.LaneEnds, int(s.spec.Batch/jobspec.LaneGroups(s.spec)))
		if err != nil {
			return nil, err
		}
		return sum.NewTree(c, around, ends, nodes), nil
	case summer != nil:
		summer.Join(compressible{around, s.tiers, s.ring, element(s.spec.Wire)},
			compress.Place{Rank: ring.Rank, World: len(ring.LaneEnds),
				Generation: ring.Generation})
		return sum.NewCompressed(c, around, summer, job.SumUpdate(s.spec,
			job.Steps(s.spec, s.data))), nil
	case s.tiers != nil:
		return sum.NewHierarchy(c, around, func(
			ctx context.Context, buf []float32, ended *time.Time,
		) (sum.Pending, error) {
			return s.tiers.Start(ctx, allreduce.Sum{Buf: buf, Ended: ended})
		}), nil
	}
	return sum.NewAround(c, around), nil
}

// ringSums says whether the job has asked for sums that only the ring makes.
func ringSums(spec *rondov1.JobSpec) bool {
	return !jobspec.Exact(spec) || spec.SparseRows == "always" || jobspec.WholeGradients(spec)
}

// element returns the wire format that --wire names.
func element(wire string) allreduce.Element {
	switch wire {
	case "bf16":
		return allreduce.BFloat16
	case "fp16":
		return allreduce.Float16
	}
	return allreduce.Float32
}

// tieredRing adds the times of the hierarchy's rings, if there are any, to the ring's own.
type tieredRing struct {
	sum.Ring
	tiers *tiers
}

func (r tieredRing) Timing() (sending, waiting time.Duration) {
	sending, waiting = r.Ring.Timing()
	if r.tiers != nil {
		for _, ring := range r.tiers.rings {
			more := ring.Timing()
			sending, waiting = sending+more.Sending, waiting+more.Waiting
		}
	}
	return sending, waiting
}

// compressible implements compress.Ring over the hierarchy, or over the ring if there is none.
type compressible struct {
	sum.Ring
	tiers   *tiers // nil: there are none
	ring    *allreduce.Ring
	element allreduce.Element
}

// AllReduce implements compress.Ring.
func (c compressible) AllReduce(ctx context.Context, buf []float32) error {
	if c.tiers == nil {
		return c.Ring.AllReduce(ctx, buf)
	}
	p, err := c.tiers.Start(ctx, allreduce.Sum{Buf: buf})
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Start implements compress.Ring.
func (c compressible) Start(
	ctx context.Context, buf, residual []float32, ended *time.Time,
) (compress.Pending, error) {
	s := allreduce.Sum{Buf: buf, Element: c.element, Residual: residual, Ended: ended}
	if c.tiers != nil {
		return c.tiers.Start(ctx, s)
	}
	return c.ring.Start(ctx, s)
}
