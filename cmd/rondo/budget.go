package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rondo/compute"
	"rondo/job"
	"rondo/job/budget"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
)

// within chooses a job's size and steps for a time on this machine. Unless --workers is given there
// is one worker for each GPU, or one on a CPU.
func within(
	ctx context.Context, flags *jobspec.Flags, spec *rondov1.JobSpec, limit time.Duration,
) (*budget.Choice, error) {
	chosen, err := job.Choose(spec.Device)
	if err != nil {
		return nil, err
	}
	if !flags.Given("workers") {
		spec.Workers = int64(max(1, len(chosen.GPUs)))
	}
	data, err := job.OpenData(ctx, spec)
	if err != nil {
		return nil, err
	}
	tokens, _ := data.Sizes()
	extent := data.Extent()
	if err := data.Close(); err != nil {
		return nil, err
	}
	c, err := budget.Choose(spec, flags.Given, tokens, limit, budget.Machine{
		Parameters: func(spec *rondov1.JobSpec) (int64, error) {
			network, err := job.NetworkOf(spec, extent)
			return int64(model.Count(network.Tensors)), err
		},
		Speed: func(spec *rondov1.JobSpec) (float64, error) {
			speed, err := trainingSpeed(ctx, chosen.Of(0), spec, extent.Tokens)
			if _, lacks := errors.AsType[*compute.MemoryError](err); lacks {
				err = fmt.Errorf("%w: %w", budget.ErrTooLarge, err)
			}
			return speed * float64(max(1, min(int(spec.Workers), len(chosen.GPUs)))), err
		},
	})
	if err != nil {
		return nil, err
	}
	return c, jobspec.Validate(c.Spec)
}
