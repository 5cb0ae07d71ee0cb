package job

import (
	"rondo/internal/app"
	"rondo/job/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/train"
)

// TrainConfig configures the step loop, without the settings that differ from rank to rank.
func TrainConfig(spec *rondov1.JobSpec, d Data) (train.Config, error) {
	rule, err := train.ParseOptimizer(spec.Optimizer)
	if err != nil {
		return train.Config{}, app.Usage(err)
	}
	c := train.Config{
		Lanes: int(spec.Batch),
		Steps: Steps(spec, d),
		Optimizer: train.Optimizer{Rule: rule, Momentum: spec.Momentum, Beta1: spec.Beta1,
			Beta2: spec.Beta2, Rho: spec.Rho, Epsilon: spec.Epsilon,
			WeightDecay: spec.WeightDecay},
		Schedule: train.Schedule{Kind: train.ScheduleKind(spec.LrSchedule), Rate: spec.Lr,
			Min: spec.LrMin, Warmup: spec.WarmupSteps, Decay: spec.LrDecay,
			Every: spec.LrStepEvery, Patience: spec.LrPatience},
		Clip: train.Clip{Limit: spec.Clip, By: train.ClipBy(spec.ClipBy),
			Scope: train.ClipScope(spec.ClipScope)},
		Accumulate:     int(spec.Accumulate),
		LaneGroups:     int(jobspec.LaneGroups(spec)),
		Canonical:      jobspec.Canonical(spec),
		Local:          local(spec),
		NonfiniteLimit: spec.NonfiniteLimit,
		EvalEvery:      spec.EvalEvery,
		EarlyStop:      spec.EarlyStop,
		SaveEvery:      spec.CheckpointEvery,
		SampleEvery:    spec.SampleEvery,

		CheckEvery:      spec.CheckEvery,
		EvictStragglers: spec.EvictStragglers,
	}
	return c, nil
}

// local configures local SGD; the zero value sums each step's gradient.
func local(spec *rondov1.JobSpec) train.Local {
	if spec.SyncEvery <= 1 {
		return train.Local{}
	}
	return train.Local{Every: spec.SyncEvery, Outer: train.Outer(spec.OuterOptimizer),
		Rate: spec.OuterLr, Momentum: spec.OuterMomentum}
}
