package train

import "context"

// Validation is what a job remembers of its evaluations. One whose loss is not finite counts as not
// better than any.
type Validation struct {
	Step int64   `json:"step"` // after which the newest finite loss was measured; 0: there is none
	Loss float64 `json:"loss"` // the newest that is finite

	// The best is the least loss of the evaluations that were due by Config.EvalEvery. That of the
	// job's end is none of them, so that a job that goes on decides as if it had not ended there.
	BestStep int64   `json:"best_step"` // 0: there is none
	Best     float64 `json:"best"`
	Waiting  int64   `json:"waiting"` // evaluations in a row since then that were not better
}

// measure takes an evaluation's result, and reports whether it is the best so far.
func (v *Validation) measure(r EvalReport, due bool) (best bool) {
	if isFinite(r.Loss) {
		v.Step, v.Loss = r.Step, r.Loss
	}
	if !due {
		return false
	}
	if isFinite(r.Loss) && (v.BestStep == 0 || r.Loss < v.Best) {
		v.BestStep, v.Best, v.Waiting = r.Step, r.Loss, 0
		return true
	}
	v.Waiting++
	return false
}

func (v *Validation) valid(step int64) bool {
	return v.Step >= 0 && v.Step <= step && v.BestStep >= 0 && v.BestStep <= step &&
		v.Waiting >= 0 && isFinite(v.Loss) && isFinite(v.Best)
}

// measure evaluates, and notes the result in after. It reports whether it is the best so far.
func (t *Trainer) measure(ctx context.Context, after *Progress, due bool) (best bool, err error) {
	report, err := t.evaluate(ctx)
	if err != nil {
		return false, err
	}
	t.laps.end("evaluation")
	t.evaluated = &report
	t.cfg.Observer.Evaluated(report)
	if due {
		after.Plateau.measure(report.Loss, t.cfg.Schedule.Patience)
	}
	return after.Validation.measure(report, due), nil
}

// endsEarly says whether a job with this progress ends by Config.EarlyStop.
func (t *Trainer) endsEarly(p *Progress) bool {
	return t.cfg.EarlyStop > 0 && p.Validation.Waiting >= t.cfg.EarlyStop
}
