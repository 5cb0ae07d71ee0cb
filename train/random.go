package train

import (
	"errors"
	"math"
	"math/rand/v2"

	"rondo/compute"
	"rondo/train/optim"
)

// randomStream is the random stream of the gradients of random steps.
const randomStream = 0x6e6f6e66696e6974 // "nonfinit"

// validateRandom checks Config.RandomStep.
func (c *Config) validateRandom() error {
	switch {
	case !c.RandomStep:
		return nil
	case c.Clip.Limit == 0 || c.Clip.By != optim.ByNorm:
		return errors.New("--nonfinite step makes a step of the size of --clip, a norm: give " +
			"--clip above 0 and --clip-by norm")
	case c.Local.On() || c.NewSlots != nil:
		return errors.New("--nonfinite step cannot be used with --sync-every or " +
			"--shard-optimizer")
	}
	return nil
}

// randomStep updates the parameters by a random gradient whose norm is the clipping limit, in the
// place of one that was not finite (Goodfellow, Bengio and Courville, Deep Learning, 10.11.1). The
// direction is uniform, and a function of the seed and the step alone: all ranks take the same. The
// gradient is zero afterwards.
func (u *updater) randomStep(step int64) {
	rng := rand.New(rand.NewPCG(u.cfg.Seed, randomStream+uint64(step)))
	random, squares := make([]float32, len(u.grads)), 0.0
	for _, t := range u.task.Tensors() { // what is between them stays zero
		for i := range random[t.Offset:][:t.Len] {
			x := rng.NormFloat64()
			random[t.Offset+i] = float32(x)
			squares += x * x
		}
	}
	factor := float32(u.cfg.Clip.Limit / math.Sqrt(squares))
	for i := range random {
		random[i] *= factor
	}
	u.dev.Upload(u.grads, random)
	u.clipper.Clip(u.grads, &compute.Clip{Limit: u.cfg.Clip.Limit, Share: 1}, nil)
	u.updateBySum(tally{})
	u.dev.Zero(u.grads)
}
