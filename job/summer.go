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

// SummerConfig is how the ranks of a job of so many steps sum the gradient of a model where the
// ring does not simply sum all of it in fp32; nil: it does.
func SummerConfig(spec *rondov1.JobSpec, m model.Config, steps int64) (*compress.Config, error) {
	way, err := jobspec.ParseCompress(spec.Compress)
	if err != nil {
		return nil, err
	}
	views := model.Layout(m)
	c := compress.Config{Length: model.Span(views), TopK: way.TopK, PowerSGD: way.PowerSGD,
		Now: time.Now, Feedback: spec.ErrorFeedback && spec.Compress == "none", Seed: spec.Seed,
		After: wholeSteps(spec, steps), PerTensor: divides(spec)}
	if momentumAfter(spec, steps) > 0 {
		c.Momentum = momentum(spec)
	}
	for _, v := range views {
		c.Tensors = append(c.Tensors, tensor(v))
	}
	if spec.Compress == "none" {
		c.Lookup = lookup(spec, m, views)
	}
	if jobspec.Exact(spec) && c.Lookup == nil {
		return nil, nil
	}
	return &c, nil
}

// SumUpdate is what a compressed sum changes of the update, in a job of so many steps.
func SumUpdate(spec *rondov1.JobSpec, steps int64) sum.Update {
	return sum.Update{Scale: float32(gradientScale(spec)), HoldAfter: holdAfter(spec, steps),
		MomentumAfter: momentumAfter(spec, steps), Decay: momentum(spec).Decay}
}

// gradientScale is what makes the most of binary16's range, whose numbers lose bits below 2^-14,
// as most of a gradient is, and are 0 below 2^-25; 0: nothing. What each worker has clipped adds up
// to no number above --clip, so that the greatest power of two is known with which that, and what
// rounding adds, does not overflow.
func gradientScale(spec *rondov1.JobSpec) float64 {
	clipped := spec.Clip > 0 && spec.ClipScope == "worker"
	if spec.Wire != "fp16" || !clipped || spec.SyncEvery > 1 || spec.Clip > jobspec.MostHalf {
		return 0
	}
	return math.Exp2(min(maxScale, math.Floor(math.Log2(jobspec.MostHalf/spec.Clip))))
}

// maxScale bounds a gradientScale where --clip is tiny, as an exponent of two.
const maxScale = 60

// divides says whether the optimizer divides by second moments.
func divides(spec *rondov1.JobSpec) bool {
	switch spec.Optimizer {
	case "adam", "adamw", "rmsprop", "adagrad":
		return true
	}
	return false
}

// wholeShare is what part of a job --compress does not begin in yet, one in so many steps, if
// --compress-after does not say when. PyTorch's PowerSGD asks for a tenth at least; a second moment
// that is to stay needs more.
const wholeShare = 5

// leastHeld is how many gradients a second moment is of, at least, if it is to stay.
const leastHeld = 100

// wholeSteps is how many of a job's first steps send all numbers, of a job of so many.
func wholeSteps(spec *rondov1.JobSpec, steps int64) int64 {
	if spec.Compress == "none" {
		return 0
	}
	if spec.CompressAfter > 0 {
		return spec.CompressAfter
	}
	return steps / wholeShare
}

// holdAfter is after which step the optimizer's second moment stays; 0: it never does. What it is
// made of within rounds is each worker's own gradient.
func holdAfter(spec *rondov1.JobSpec, steps int64) int64 {
	whole := wholeSteps(spec, steps)
	if !divides(spec) || spec.SyncEvery > 1 || whole < leastHeld {
		return 0
	}
	return whole
}

// momentumAfter is after which step each worker has the momentum of its own gradients; 0: it is in
// the update always. A sum of momenta is not clipped as gradients are, and a second moment that is
// not held is of gradients.
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

// momentum is the optimizer's; none: it has none.
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

// repeats is how often a text's tokens are read again, at most, before it is likely that a step
// reads most of the vocabulary: words are so unevenly distributed that steps of several times as
// many tokens as there are different ones still miss most of them.
const repeats = 4

// lookup is the tensor of which only what belongs to tokens that were read may travel; nil: none.
// Tied weights are the output layer's too, whose gradient is of all tokens.
func lookup(spec *rondov1.JobSpec, m model.Config, views []model.View) *compress.Lookup {
	always := spec.SparseRows == "always"
	if spec.SyncEvery > 1 { // momenta change the rows of tokens that were not read
		return nil
	}
	if m.TieWeights || !always && spec.SparseRows != "auto" || jobspec.WholeGradients(spec) {
		return nil
	}
	if !always && spec.Accumulate*spec.Batch*spec.Bptt > repeats*int64(m.Vocab) {
		return nil
	}
	for _, v := range views {
		if v.Name == m.LookupWeight() {
			return &compress.Lookup{Tensor: tensor(v), ByColumn: m.Embed == 0, Always: always}
		}
	}
	return nil
}
