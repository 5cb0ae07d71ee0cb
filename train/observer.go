package train

import "time"

// Observer hears what happens, in order, from the goroutine of Run: it must not wait. Every rank
// has its own; what they hear is the same but for tokens per second, samples and checkpoints, which
// are rank 0's, and OwnNotice.
type Observer interface {
	Step(StepReport)
	Evaluated(EvalReport)
	// Sampled hears the text that Config.Sample wrote.
	Sampled(step int64, text string)
	// Checkpoint hears that the Saver took a snapshot; it may not be on storage yet.
	Checkpoint(step int64)
	// Notice hears what a person should know: a step that was skipped, a save that failed.
	Notice(text string)
	// OwnNotice hears what a person should know of this rank alone: that its device is slow.
	OwnNotice(text string)
}

// StepReport is one completed step, or round (Local). Of a round, Loss and GradientNorm are the
// means over its steps, and LearningRate is that of the last.
type StepReport struct {
	Step  int64 // completed steps, this one among them
	Steps int64 // of the whole job
	Epoch int64 // that the step belongs to, from 1

	Loss         float64 // mean over all G*T targets; NaN when a rank's is not finite
	EpochLoss    float64 // mean over the epoch's steps so far that count; NaN when there is none
	LearningRate float64
	// GradientNorm is the L2 norm before clipping: of the whole gradient, or when each rank clips
	// its own (ScopeWorker) the mean of the ranks' norms, weighted by their lanes.
	GradientNorm    float64
	TokensPerSecond float64 // G*T by this rank's time for the step; 0 when that is none
	// Skipped says that the loss or the gradient was not finite on some rank, so that no rank
	// updated its parameters and the loss does not count.
	Skipped bool

	Times StepTimes
}

// StepTimes is where a rank's time for a step went. What was due after the step before is in none
// of it.
type StepTimes struct {
	// Compute is reading, forward, backward, clipping, updating, and what a Sum computes.
	Compute time.Duration
	Exposed time.Duration // what of the sum over the ranks was not done beside the backward pass
	// Waiting is the part of Exposed in which a slower rank had not come to the sum yet, judged by
	// how long each took to get there. Of more than 16 ranks it may be told as less than it is.
	Waiting time.Duration
}

// EvalReport is the loss on the whole evaluation text.
type EvalReport struct {
	Step   int64   // completed steps
	Loss   float64 // mean over Tokens; NaN when it is not finite
	Tokens int64   // targets that count
}

// silence is the Observer of those who have none.
type silence struct{}

func (silence) Step(StepReport)       {}
func (silence) Evaluated(EvalReport)  {}
func (silence) Sampled(int64, string) {}
func (silence) Checkpoint(int64)      {}
func (silence) Notice(string)         {}
func (silence) OwnNotice(string)      {}
