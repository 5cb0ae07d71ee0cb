package job

import (
	"time"

	"rondo/allreduce/compress"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/sum"
	"rondo/train/optim"
)

// SummerConfig configures the compressed sum of a job with this many steps; nil: the ring sums the
// whole gradient in fp32.
func SummerConfig(spec *rondov1.JobSpec, n Network, steps int64) (*compress.Config, error) {
	way, err := jobspec.ParseCompress(spec.Compress)
	if err != nil {
		return nil, err
	}
	sums := summedJob(spec, steps)
	c := compress.Config{Length: model.Span(n.Tensors), TopK: way.TopK, PowerSGD: way.PowerSGD,
		Now: time.Now, Feedback: spec.ErrorFeedback && spec.Compress == "none", Seed: spec.Seed,
		After: sums.WholeSteps(), PerTensor: sums.Divides()}
	if sums.Update().MomentumAfter > 0 {
		c.Momentum = sums.RankMomentum()
	}
	for _, v := range n.Tensors {
		c.Tensors = append(c.Tensors, tensor(v))
	}
	if spec.Compress == "none" {
		c.Lookup = lookup(spec, n)
	}
	if jobspec.Exact(spec) && c.Lookup == nil {
		return nil, nil
	}
	return &c, nil
}

// SumUpdate returns the changes of the update by a compressed sum, in a job with this many steps.
func SumUpdate(spec *rondov1.JobSpec, steps int64) sum.Update {
	return summedJob(spec, steps).Update()
}

// summedJob describes a job with this many steps to package sum. The spec is valid.
func summedJob(spec *rondov1.JobSpec, steps int64) sum.Job {
	rule, _ := optim.Parse(spec.Optimizer)
	way, _ := jobspec.ParseCompress(spec.Compress)
	j := sum.Job{Steps: steps, Rounds: spec.SyncEvery > 1, Optimizer: rule,
		Momentum: spec.Momentum, Beta1: spec.Beta1, Clip: spec.Clip,
		ClipsSum: spec.ClipScope == "global", Compresses: spec.Compress != "none",
		TopK: way.TopK > 0, After: spec.CompressAfter}
	if spec.Wire == "fp16" && spec.ClipScope == "worker" {
		j.HalfLimit = jobspec.MostHalf
	}
	return j
}

func tensor(v model.View) compress.Tensor {
	t := compress.Tensor{Offset: v.Offset, Rows: 1, Columns: v.Len}
	if len(v.Shape) == 2 {
		t.Rows, t.Columns = v.Shape[0], v.Shape[1]
	}
	return t
}

// repeats is the most tokens per vocabulary entry that a step may read with sparse rows. Words are
// so unevenly distributed that a step of several times as many tokens as entries still misses most.
const repeats = 4

// lookup is the tensor whose gradient is limited to the tokens that were read; nil: none.
func lookup(spec *rondov1.JobSpec, n Network) *compress.Lookup {
	always := spec.SparseRows == "always"
	if spec.SyncEvery > 1 { // momenta change the rows of other tokens too
		return nil
	}
	if !always && spec.SparseRows != "auto" || jobspec.WholeGradients(spec) {
		return nil
	}
	if !always && spec.Accumulate*spec.Batch*spec.Bptt > repeats*int64(n.Tokens) {
		return nil
	}
	for _, v := range n.Tensors {
		if v.Name == n.Table {
			return &compress.Lookup{Tensor: tensor(v), ByColumn: n.TableByColumn, Always: always}
		}
	}
	return nil
}
