package train

import (
	"context"
	"errors"
	"math/bits"
	"time"

	"rondo/train/agree"
)

// tensors returns the tensors that are the same on every rank: the parameters and the slots that
// are not shared out. It must be called between steps.
func (c *core) tensors() [][]float32 {
	return append([][]float32{c.task.Params()}, c.slots.Same()...)
}

func (c *core) digest() uint64 { return c.memory.Digest(c.tensors()) }

// The part of the parameters that Digest reads: a sixteenth, within bounds. Reading all of them
// would take several percent of a step.
const (
	digestParts     = 16
	leastDigestPart = 1 << 10 // floats
	mostDigestPart  = 1 << 15
)

// Digest is a digest of a part of the parameters, the same on all ranks. Progress.Commits alone
// picks the part: it begins at a multiple of the golden ratio, so the parts of successive commits
// spread evenly. Step numbers would not do: those of rounds may be far apart, and multiples of a
// Fibonacci number pick nearly the same part. Any rank, or a checkpoint, that has the state gets
// the same digest. It must be called between steps.
func (c *core) Digest() uint64 { return digest(c.memory, c.task.Params(), c.progress.Commits) }

// Digest returns Trainer.Digest after so many commits, of parameters in host memory, padding
// included.
func Digest(params []float32, commits int64) uint64 {
	return digest(agree.Memory{}, params, commits)
}

func digest(memory agree.Memory, x []float32, commits int64) uint64 {
	const golden = 0x9e3779b97f4a7c15 // the fraction of the golden ratio, times 2^64
	n := min(len(x), max(leastDigestPart, min(mostDigestPart, len(x)/digestParts)))
	first, _ := bits.Mul64(uint64(commits)*golden, uint64(len(x)))
	head := x[first:min(int(first)+n, len(x))]
	return memory.Digest([][]float32{head, x[:n-len(head)]})
}

// rollCaller lets the ranks compare their tensors and speed between steps.
type rollCaller struct {
	*batch
	roll agree.Roll
}

// rollCall compares digests and speed over the ranks. All ranks reach the same verdict at the same
// step.
func (c *rollCaller) rollCall(ctx context.Context) error {
	if c.ring.Peers == nil || len(c.ring.LaneEnds) == 1 {
		return nil
	}
	step := c.progress.Step
	late, err := c.roll.Call(ctx, c.ranks, step, c.digest(), c.blocked())
	if err != nil {
		return c.forgetIfCorrupt(err)
	}
	if err := c.slots.Alike(ctx); err != nil || late == nil {
		return err
	}
	notices, err := c.roll.Judge(c.ranks, step, late, c.cfg.EvictStragglers)
	for _, text := range notices {
		c.cfg.Observer.Notice(text)
	}
	return err
}

// blocked is the total time that this rank's sends were blocked in this ring.
func (c *rollCaller) blocked() time.Duration {
	if c.ring.Peers == nil {
		return 0
	}
	sending, _ := c.ring.Peers.Timing()
	return sending
}

// compareDigests compares digests of the tensors over the ranks.
func (c *rollCaller) compareDigests(ctx context.Context) error {
	if c.cfg.CheckEvery == 0 {
		return nil
	}
	return c.forgetIfCorrupt(agree.Alike(ctx, c.ranks, c.progress.Step, c.digest))
}

// forgetIfCorrupt drops the state if it is not to be trusted.
func (c *rollCaller) forgetIfCorrupt(err error) error {
	if _, split := errors.AsType[*agree.SplitError](err); split && c.hasState {
		c.split = c.version() // ranks that have not got the error learn of it at the next Join
		c.Forget()
	}
	if _, corrupt := errors.AsType[*agree.CorruptError](err); corrupt {
		c.Forget()
	}
	return err
}
