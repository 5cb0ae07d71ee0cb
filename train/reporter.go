package train

import (
	"fmt"
	"time"
)

// reporter tells the Observer of steps.
type reporter struct {
	*core
	rates      rates
	unrecorded bool // the Observer knows that the device does not record
}

// tellUnrecorded tells once that steps, or evaluations or samples, take longer than they should for
// as long as the job lasts.
func (r *reporter) tellUnrecorded() {
	if err := r.task.Unrecorded(); err != nil && !r.unrecorded {
		r.unrecorded = true
		r.cfg.Observer.OwnNotice(fmt.Sprintf("some work takes longer, since the device has not "+
			"recorded it: %v", err))
	}
}

// NonfiniteError ends a job that has gone astray: every rank has it at the same step.
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

// noteSkipped tells of a step that was skipped, and ends the job after too many in a row.
func (r *reporter) noteSkipped(ranks int) error {
	p := &r.progress
	if p.NonfiniteRun >= r.cfg.NonfiniteLimit {
		return &NonfiniteError{Steps: p.NonfiniteRun, Rounds: r.cfg.Local.on()}
	}
	who := "the summed gradient is not finite"
	if ranks > 0 {
		who = fmt.Sprintf("the loss or the gradient is not finite on %d of %d ranks", ranks,
			len(r.ring.LaneEnds))
	}
	what := "step"
	if r.cfg.Local.on() {
		what = "the round up to step"
	}
	r.cfg.Observer.Notice(fmt.Sprintf("%s %d was skipped: %s (%d in a row, at most %d)", what,
		p.Step, who, p.NonfiniteRun, r.cfg.NonfiniteLimit-1))
	return nil
}

// speed returns the tokens of some steps by the time that they took, and counts it for the median.
func (r *reporter) speed(took time.Duration, steps int64) float64 {
	seconds := took.Seconds()
	if seconds <= 0 {
		return 0
	}
	rate := float64(steps) * float64(r.targets()) / seconds
	r.rates.add(rate)
	return rate
}

// observe fills in what the progress says, and tells the Observer.
func (r *reporter) observe(s StepReport) {
	p := &r.progress
	s.Step, s.Steps, s.Epoch, s.EpochLoss = p.Step, r.cfg.Steps, p.Epoch, p.EpochLoss()
	r.cfg.Observer.Step(s)
}
