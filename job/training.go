package job

import (
	"slices"

	"rondo/compute"
	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
	"rondo/train"
	"rondo/train/optim"
)

// TrainConfig configures the step loop, without the settings that differ from rank to rank.
func TrainConfig(spec *rondov1.JobSpec, d Data) (train.Config, error) {
	rule, err := rule(spec)
	if err != nil {
		return train.Config{}, err
	}
	average, err := jobspec.ParseAverage(spec.Average)
	if err != nil {
		return train.Config{}, app.Usage(err)
	}
	scale, err := rateScale(spec, d)
	if err != nil {
		return train.Config{}, err
	}
	c := train.Config{
		RateScale: scale,
		Lanes:     int(spec.Batch),
		Steps:     Steps(spec, d),
		Optimizer: optim.Optimizer{Rule: rule, Momentum: spec.Momentum, Beta1: spec.Beta1,
			Beta2: spec.Beta2, Rho: spec.Rho, Epsilon: spec.Epsilon,
			WeightDecay: spec.WeightDecay},
		Schedule: optim.Schedule{Kind: optim.ScheduleKind(spec.LrSchedule), Rate: spec.Lr,
			Min: spec.LrMin, Warmup: spec.WarmupSteps, Decay: spec.LrDecay,
			Every: spec.LrStepEvery, Hold: spec.LrHold, Patience: spec.LrPatience},
		Clip: optim.Clip{Limit: spec.Clip, By: optim.ClipBy(spec.ClipBy),
			Scope: optim.ClipScope(spec.ClipScope)},
		Accumulate: int(spec.Accumulate),
		LaneGroups: int(jobspec.LaneGroups(spec)),
		Canonical:  jobspec.Canonical(spec),
		Local:      local(spec),
		Average: optim.Averaging{Kind: optim.AverageKind(average.Kind), From: average.From,
			Decay: average.Decay, Patience: average.Patience},
		NonfiniteLimit: spec.NonfiniteLimit,
		RandomStep:     spec.Nonfinite == "step",
		Seed:           spec.Seed,
		EvalEvery:      spec.EvalEvery,
		EarlyStop:      spec.EarlyStop,
		SaveEvery:      spec.CheckpointEvery,
		SampleEvery:    spec.SampleEvery,

		CheckEvery:      spec.CheckEvery,
		EvictStragglers: spec.EvictStragglers,
	}
	if counts(spec) { // the sum itself is added to the parameters
		c.Optimizer = optim.Optimizer{Rule: rule}
		c.Schedule = optim.Schedule{Kind: optim.Constant, Rate: 1}
		c.Clip.Limit = 0
	}
	if c.Schedule.Warmup > c.Steps {
		return c, app.Usagef("--warmup-steps %d is more than the job's steps, %d, so the learning "+
			"rate would never reach --lr: give fewer", c.Schedule.Warmup, c.Steps)
	}
	return c, nil
}

// counts reports whether a job's task counts, instead of going along a gradient.
func counts(spec *rondov1.JobSpec) bool { return !slices.Contains(task.Networks(), spec.Task) }

// rule is a job's update rule.
func rule(spec *rondov1.JobSpec) (compute.Optimizer, error) {
	if counts(spec) {
		return compute.SGD, nil
	}
	rule, err := optim.Parse(spec.Optimizer)
	return rule, app.Usage(err)
}

// local configures local SGD; the zero value sums each step's gradient.
func local(spec *rondov1.JobSpec) optim.Local {
	if spec.SyncEvery <= 1 {
		return optim.Local{}
	}
	return optim.Local{Every: spec.SyncEvery, Outer: optim.Outer(spec.OuterOptimizer),
		Rate: spec.OuterLr, Momentum: spec.OuterMomentum}
}
