package worker

import (
	"context"

	"rondo/allreduce"
	"rondo/allreduce/compress"
	"rondo/job"
	"rondo/job/jobspec"
	"rondo/model"
	"rondo/train"
)

// newSummer makes what sums gradients for a worker's whole life, where the ring alone does not.
func (e *engine) newSummer(config model.Config) error {
	how, err := job.SummerConfig(e.worker.spec, config,
		e.worker.data.Steps(e.worker.spec))
	if err != nil || how == nil {
		return err
	}
	e.summer, err = compress.New(*how)
	return err
}

// summer takes the worker's Summer into the ring; nil: there is none, a group sums, or a tree or
// ranges are summed around the ring. What has to go by tiers needs one, if only to add up all there
// is.
func (s *session) summer(ring train.Ring, r reducer) (train.Summer, error) {
	if s.group != nil || jobspec.WholeGradients(s.spec) {
		return nil, nil
	}
	summer := s.engine.summer
	if summer == nil && s.tiers == nil {
		return nil, nil
	}
	if summer == nil {
		all := compress.Config{Length: len(s.engine.model.Params())}
		var err error
		if summer, err = compress.New(all); err != nil {
			return nil, err
		}
	}
	summer.Join(sums{r, element(s.spec.Wire)}, compress.Place{Rank: ring.Rank,
		World: len(ring.LaneEnds), Generation: ring.Generation})
	return summer, nil
}

// ringSums says whether the job has asked for sums that only the ring makes.
func (s *session) ringSums() bool {
	return !jobspec.Exact(s.spec) || s.spec.SparseRows == "always" ||
		jobspec.WholeGradients(s.spec)
}

// element is what --wire names.
func element(wire string) allreduce.Element {
	switch wire {
	case "bf16":
		return allreduce.BFloat16
	case "fp16":
		return allreduce.Float16
	}
	return allreduce.Float32
}

// sums is the ring as a Summer sees it.
type sums struct {
	reducer
	element allreduce.Element
}

// AllReduce implements compress.Ring.
func (s sums) AllReduce(ctx context.Context, buf []float32) error {
	if s.tiers == nil {
		return s.Ring.AllReduce(ctx, buf)
	}
	p, err := s.tiers.Start(ctx, allreduce.Sum{Buf: buf})
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Start implements compress.Ring.
func (s sums) Start(
	ctx context.Context, buf, residual []float32,
) (compress.Pending, error) {
	sum := allreduce.Sum{Buf: buf, Element: s.element, Residual: residual}
	if s.tiers != nil {
		return s.tiers.Start(ctx, sum)
	}
	return s.Ring.Start(ctx, sum)
}
