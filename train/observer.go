package train

import "time"

// Observer receives reports, in order, from Run's goroutine, and must not block. Every rank has
// one. The reports are the same on all ranks, but for tokens per second, times, OwnNotice, and
// samples and checkpoints, which only rank 0 reports.
type Observer interface {
	Step(StepReport)
	Evaluated(EvalReport)
	// Sampled reports the text that Config.Sample generated.
	Sampled(step int64, text string)
	// Checkpoint reports that the Saver took a snapshot. It may not be on storage yet.
	Checkpoint(step int64)
	// Notice reports an event for the operator, such as a skipped step or a failed save.
	Notice(text string)
	// OwnNotice reports an event of this rank alone, such as a slow device.
	OwnNotice(text string)
}

// StepReport is one completed step, or round (Local). In a round, Loss and GradientNorm are means
// over its steps, and LearningRate is the last step's.
type StepReport struct {
	Step  int64 // completed steps, including this one
	Steps int64 // of the whole job
	Epoch int64 // of the step, from 1

	Loss         float64 // mean over all targets; NaN when a rank's is not finite
	EpochLoss    float64 // mean over the epoch's steps that were not skipped; NaN if all were
	LearningRate float64
	// GradientNorm is the L2 norm before clipping. If each rank clips its own gradient
	// (ScopeWorker), or each group's (ScopeGroup), it is the mean of their norms, weighted by their
	// targets.
	GradientNorm    float64
	Tokens          float64 // of all ranks in the step; in a round the mean of its steps
	TokensPerSecond float64 // of all ranks, over this rank's step time; 0 if that time is 0
	// Skipped: the loss or the gradient was not finite on some rank. No rank updated its
	// parameters, and the loss does not count.
	Skipped bool

	Times StepTimes
}

// StepTimes splits a rank's step time. Work that is due after the step before is not included.
type StepTimes struct {
	// Compute is reading, forward, backward, clipping, updating and the Sum's computing.
	Compute time.Duration
	Exposed time.Duration // part of the sum that does not overlap the backward pass
	// Waiting is the part of Exposed spent waiting for the slowest rank to reach the sum. With more
	// than 16 ranks it may be too low.
	Waiting time.Duration
}

// EvalReport is the result on all evaluation data.
type EvalReport struct {
	Step   int64   // completed steps
	Loss   float64 // mean over Tokens; NaN when it is not finite
	Tokens int64   // targets that count
	// Metrics are the task's own.
	Metrics []Metric
}

// noObserver discards all reports.
type noObserver struct{}

func (noObserver) Step(StepReport)       {}
func (noObserver) Evaluated(EvalReport)  {}
func (noObserver) Sampled(int64, string) {}
func (noObserver) Checkpoint(int64)      {}
func (noObserver) Notice(string)         {}
func (noObserver) OwnNotice(string)      {}
