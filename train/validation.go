package train

import "context"

// Validation is a job's memory of its evaluations. A loss that is not finite is never better.
type Validation struct {
	Step int64   `json:"step"` // step of the newest finite loss; 0: none
	Loss float64 `json:"loss"` // the newest finite loss

	// Text is the Task.EvalData of the evaluations; 0: unknown.
	Text int64 `json:"text,omitempty"`

	// The best is the lowest loss of the evaluations due by Config.EvalEvery. The evaluation at the
	// job's end does not count, so that a job that is extended decides as if it had not ended
	// there.
	BestStep int64   `json:"best_step"` // 0: none
	Best     float64 `json:"best"`
	Waiting  int64   `json:"waiting"` // evaluations since the best
}

// measure adds an evaluation's result, and reports whether it is the best so far.
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

// On returns v for evaluations of a text: empty if v is of another text. An unknown text counts as
// the same.
func (v Validation) On(text int64) Validation {
	if text != 0 && v.Text != 0 && text != v.Text {
		return Validation{Text: text}
	}
	return v
}

// Lowest returns the step and the loss of the best evaluation, including the one at the job's end.
// Step 0: none.
func (v *Validation) Lowest() (step int64, loss float64) {
	if v.BestStep == 0 || v.Step > v.BestStep && v.Loss < v.Best {
		return v.Step, v.Loss
	}
	return v.BestStep, v.Best
}

// EndsEarly reports whether a job with this Config.EarlyStop ends.
func (v *Validation) EndsEarly(limit int64) bool { return limit > 0 && v.Waiting >= limit }

func (v *Validation) valid(step int64) bool {
	return v.Step >= 0 && v.Step <= step && v.BestStep >= 0 && v.BestStep <= step &&
		v.Waiting >= 0 && isFinite(v.Loss) && isFinite(v.Best)
}

// measure evaluates, and records the result in after. It reports whether it is the best so far.
func (e *evaluator) measure(ctx context.Context, after *Progress, due bool) (best bool, err error) {
	var report EvalReport
	err = averager{e.core}.withAverage(func() (err error) {
		report, err = e.evaluate(ctx)
		return err
	})
	if err != nil {
		return false, err
	}
	e.laps.end("evaluation")
	e.evaluated = &report
	e.cfg.Observer.Evaluated(report)
	if data := e.task.EvalData(); data != 0 {
		after.Validation.Text = data
	}
	if due {
		after.Plateau.Measure(report.Loss, e.cfg.Schedule.Patience)
		e.cfg.Average.Measure(&after.Average, report.Loss)
	}
	return after.Validation.measure(report, due), nil
}

// endsEarly reports whether Config.EarlyStop ends a job with this progress.
func (t *Trainer) endsEarly(p *Progress) bool {
	return p.Validation.EndsEarly(t.cfg.EarlyStop)
}
