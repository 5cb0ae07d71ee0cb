package train

import (
	"fmt"
	"time"
)

// reporter reports steps to the Observer.
type reporter struct {
	*core
	rates      rates
	unrecorded bool // the Observer was told that the device does not record
	culprit    int  // the rank that alone caused the last skipped steps of this ring
	caused     int64
}

// reportUnrecorded reports once that some work of this job is slower than it should be, because the
// device could not record it.
func (r *reporter) reportUnrecorded() {
	if err := r.task.Unrecorded(); err != nil && !r.unrecorded {
		r.unrecorded = true
		r.cfg.Observer.OwnNotice(fmt.Sprintf("some steps, evaluations or samples are slower: "+
			"the device could not record them: %v", err))
	}
}

// NonfiniteError ends a diverged job. Every rank returns it at the same step.
type NonfiniteError struct {
	Steps  int64 // or rounds
	Rounds bool
}

func (e *NonfiniteError) Error() string {
	what := "steps"
	if e.Rounds {
		what = "rounds (--sync-every)"
	}
	return fmt.Sprintf("the loss or the gradient was not finite in %d %s in a row, which is "+
		"--nonfinite-limit: lower --lr, or lower --clip (0 is no clipping)", e.Steps, what)
}

// reportSkipped reports a skipped step, and ends the job after too many in a row. A rank that alone
// causes more than half as many is put out before. That happens once in a row of skipped steps, so
// a job that diverges ends.
func (r *reporter) reportSkipped(all tally) error {
	p := &r.progress
	if p.NonfiniteRun >= r.cfg.NonfiniteLimit {
		return &NonfiniteError{Steps: p.NonfiniteRun, Rounds: r.cfg.Local.On()}
	}
	if all.nonfinite != 1 || all.culprit != r.culprit || p.NonfiniteRun == 1 {
		r.caused = 0
	}
	who := "the summed gradient is not finite"
	if all.nonfinite > 0 {
		who = fmt.Sprintf("the loss or the gradient is not finite on %d of %d ranks",
			all.nonfinite, len(r.ring.LaneEnds))
	}
	if all.nonfinite == 1 {
		who += ", " + r.ranks.Name(all.culprit)
		r.culprit, r.caused = all.culprit, r.caused+1
	}
	what := "step"
	if r.cfg.Local.On() {
		what = "the round up to step"
	}
	did := "was skipped"
	if r.cfg.RandomStep {
		did = "took a random direction"
	}
	r.cfg.Observer.Notice(fmt.Sprintf("%s %d %s: %s (%d in a row, at most %d)", what, p.Step, did,
		who, p.NonfiniteRun, r.cfg.NonfiniteLimit-1))
	if r.caused > r.cfg.NonfiniteLimit/2 && len(r.ring.LaneEnds) > 1 {
		return r.ranks.Blame(r.culprit, fmt.Sprintf("alone made %d steps in a row not finite",
			r.caused))
	}
	return nil
}

// tokens returns the tokens that all ranks read in the steps [from, to).
func (r *reporter) tokens(from, to int64) (tokens int64) {
	for segment := r.position(from); segment < r.position(to); segment++ {
		tokens += r.task.Tokens(segment, r.whole())
	}
	return tokens
}

// speed returns the tokens per second of a step, and adds it to the histogram.
func (r *reporter) speed(took time.Duration, tokens int64) float64 {
	seconds := took.Seconds()
	if seconds <= 0 {
		return 0
	}
	rate := float64(tokens) / seconds
	r.rates.add(rate)
	return rate
}

// observe completes a report from the progress and sends it to the Observer.
func (r *reporter) observe(s StepReport) {
	p := &r.progress
	s.Step, s.Steps, s.Epoch, s.EpochLoss = p.Step, r.cfg.Steps, p.Epoch, p.EpochLoss()
	r.cfg.Observer.Step(s)
}
