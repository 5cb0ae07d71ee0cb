package sum

import (
	"math"

	"rondo/allreduce/compress"
	"rondo/compute"
)

// Job is the part of a job's configuration that decides how a compressed sum changes the update.
type Job struct {
	Steps  int64 // of the whole job
	Rounds bool  // local SGD: the ranks sum changes of parameters, not gradients

	Optimizer       compute.Optimizer
	Momentum, Beta1 float64
	Clip            float64 // limit; 0: no clipping
	ClipsSum        bool    // the sum is clipped, not each rank's gradient

	// HalfLimit is the largest Clip with which a gradient fits into fp16; 0: it does not travel so.
	HalfLimit float64
	// Compresses: from some step on not all numbers are sent, and with TopK only the largest.
	Compresses, TopK bool
	After            int64 // the first steps, in which all are; 0: a wholeShare-th of Steps
}

// wholeShare: by default one wholeShare-th of a job's steps sends all numbers. PyTorch's PowerSGD
// asks for at least a tenth; a frozen second moment needs more.
const wholeShare = 5

// leastHeld is the least number of gradients that a frozen second moment is made of.
const leastHeld = 100

// maxScale bounds Update.Scale for a tiny Clip, as an exponent of two.
const maxScale = 60

// WholeSteps is the number of the job's first steps that send all numbers.
func (j Job) WholeSteps() int64 {
	switch {
	case !j.Compresses:
		return 0
	case j.After > 0:
		return j.After
	}
	return j.Steps / wholeShare
}

// Update returns the changes of the job's update.
func (j Job) Update() Update {
	return Update{Scale: float32(j.scale()), HoldAfter: j.holdAfter(),
		MomentumAfter: j.momentumAfter(), Decay: j.RankMomentum().Decay}
}

// Divides reports whether the optimizer divides by second moments.
func (j Job) Divides() bool {
	switch j.Optimizer {
	case compute.Adam, compute.AdamW, compute.RMSProp, compute.Adagrad:
		return true
	}
	return false
}

// RankMomentum is the optimizer's momentum as each rank would keep it, of its own gradients; zero
// if the optimizer has none.
func (j Job) RankMomentum() compress.Momentum {
	switch j.Optimizer {
	case compute.Momentum, compute.Nesterov:
		return compress.Momentum{Decay: j.Momentum, Gain: 1,
			Nesterov: j.Optimizer == compute.Nesterov}
	case compute.Adam, compute.AdamW:
		return compress.Momentum{Decay: j.Beta1, Gain: 1 - j.Beta1}
	}
	return compress.Momentum{}
}

// scale is the factor that makes the best use of fp16's range; 0: none. Most of a gradient is below
// 2^-14, where fp16 loses bits, or even below 2^-25, where it is 0. If each rank clips, no number
// of the sum exceeds Clip, so the largest power of two is known with which the sum and its rounding
// errors do not overflow.
func (j Job) scale() float64 {
	clipped := j.Clip > 0 && !j.ClipsSum
	if j.HalfLimit == 0 || !clipped || j.Rounds || j.Clip > j.HalfLimit {
		return 0
	}
	return math.Exp2(min(maxScale, math.Floor(math.Log2(j.HalfLimit/j.Clip))))
}

// holdAfter is Update.HoldAfter. With local SGD the second moment stays free, because it is made of
// each rank's own gradients.
func (j Job) holdAfter() int64 {
	whole := j.WholeSteps()
	if !j.Divides() || j.Rounds || whole < leastHeld {
		return 0
	}
	return whole
}

// momentumAfter is Update.MomentumAfter. The momentum stays in the update if the sum is clipped,
// because a sum of momenta is no gradient, and if the second moment is not frozen, because that
// needs gradients.
func (j Job) momentumAfter() int64 {
	clips := j.Clip > 0 && j.ClipsSum
	if !j.TopK || clips || j.Rounds || !j.RankMomentum().On() ||
		j.Divides() && j.holdAfter() == 0 {
		return 0
	}
	return j.WholeSteps()
}
