package job

import (
	"math"
	"time"

	"rondo/allreduce/compress"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/sum"
)

// SummerConfig configures the compressed sum of a job of so many steps; nil: the ring sums the
// whole gradient in fp32.
func SummerConfig(spec *rondov1.JobSpec, n Network, steps int64) (*compress.Config, error) {
	way, err := jobspec.ParseCompress(spec.Compress)
	if err != nil {
		return nil, err
	}
	c := compress.Config{Length: model.Span(n.Tensors), TopK: way.TopK, PowerSGD: way.PowerSGD,
		Now: time.Now, Feedback: spec.ErrorFeedback && spec.Compress == "none", Seed: spec.Seed,
		After: wholeSteps(spec, steps), PerTensor: divides(spec)}
	if momentumAfter(spec, steps) > 0 {
		c.Momentum = momentum(spec)
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

// SumUpdate says how a compressed sum changes the update, in a job of so many steps.
func SumUpdate(spec *rondov1.JobSpec, steps int64) sum.Update {
	return sum.Update{Scale: float32(gradientScale(spec)), HoldAfter: holdAfter(spec, steps),
		MomentumAfter: momentumAfter(spec, steps), Decay: momentum(spec).Decay}
}

// gradientScale is the factor that makes the best use of fp16's range, or 0 for none. Most of a
// gradient is below 2^-14, where fp16 loses bits, or even below 2^-25, where it is 0. If each
// worker clips, no number of the sum exceeds --clip, so the largest power of two is known with
// which the sum and its rounding errors do not overflow.
func gradientScale(spec *rondov1.JobSpec) float64 {
	clipped := spec.Clip > 0 && spec.ClipScope == "worker"
	if spec.Wire != "fp16" || !clipped || spec.SyncEvery > 1 || spec.Clip > jobspec.MostHalf {
		return 0
	}
	return math.Exp2(min(maxScale, math.Floor(math.Log2(jobspec.MostHalf/spec.Clip))))
}

// maxScale bounds gradientScale for a tiny --clip, as an exponent of two.
const maxScale = 60

// divides says whether the optimizer divides by second moments.
func divides(spec *rondov1.JobSpec) bool {
	switch spec.Optimizer {
	case "adam", "adamw", "rmsprop", "adagrad":
		return true
	}
	return false
}

// wholeShare: without --compress-after, one in so many of a job's steps precedes --compress.
// PyTorch's PowerSGD asks for at least a tenth; a frozen second moment needs more.
const wholeShare = 5

// leastHeld is the least number of gradients that a frozen second moment is made of.
const leastHeld = 100

// wholeSteps is the number of first steps, in a job of so many, that send all numbers.
func wholeSteps(spec *rondov1.JobSpec, steps int64) int64 {
	if spec.Compress == "none" {
		return 0
	}
	if spec.CompressAfter > 0 {
		return spec.CompressAfter
	}
	return steps / wholeShare
}

// holdAfter is the step after which the optimizer's second moment is frozen; 0: never. With local
// SGD it stays free, because it is made of each worker's own gradients.
func holdAfter(spec *rondov1.JobSpec, steps int64) int64 {
	whole := wholeSteps(spec, steps)
	if !divides(spec) || spec.SyncEvery > 1 || whole < leastHeld {
		return 0
	}
	return whole
}

// momentumAfter is the step after which each worker keeps the momentum of its own gradients; 0: it
// stays in the update. It stays there if the sum is clipped, because a sum of momenta is no
// gradient, and if the second moment is not frozen, because that needs gradients.
func momentumAfter(spec *rondov1.JobSpec, steps int64) int64 {
	way, err := jobspec.ParseCompress(spec.Compress)
	whole := wholeSteps(spec, steps)
	clips := spec.Clip > 0 && spec.ClipScope == "global"
	if err != nil || way.TopK == 0 || clips || spec.SyncEvery > 1 || !momentum(spec).On() {
		return 0
	}
	if divides(spec) && holdAfter(spec, steps) == 0 {
		return 0
	}
	return whole
}

// momentum is the optimizer's, or zero.
func momentum(spec *rondov1.JobSpec) compress.Momentum {
	switch spec.Optimizer {
	case "momentum", "nesterov":
		return compress.Momentum{Decay: spec.Momentum, Gain: 1,
			Nesterov: spec.Optimizer == "nesterov"}
	case "adam", "adamw":
		return compress.Momentum{Decay: spec.Beta1, Gain: 1 - spec.Beta1}
	}
	return compress.Momentum{}
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
