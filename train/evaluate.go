package train

import (
	"context"
	"errors"
	"fmt"
	"math"

	"rondo/train/exact"
)

// Layout of the buffer that the ranks sum for an evaluation.
const (
	evalLoss      = 0                // exact: the loss summed over targets
	evalTokens    = exact.Floats     // exact: the targets that count
	evalNonfinite = 2 * exact.Floats // ranks whose loss is not finite
	evalCounts    = evalNonfinite + 1
)

// evaluator runs evaluations between steps.
type evaluator struct {
	*batch
	evaluated *EvalReport // the last report
}

// evalDue reports whether an evaluation is due after a step, not counting the one at the end.
func (e *evaluator) evalDue(step int64) bool {
	if e.cfg.EvalEvery == 0 {
		return e.task.Evaluates() && e.endsEpoch(step)
	}
	return e.task.Evaluates() && e.cfg.Local.Due(step, e.cfg.EvalEvery)
}

// evaluate scores all evaluation data. Each rank reads its own lanes from a zero state. The sums do
// not depend on how the lanes are dealt.
func (e *evaluator) evaluate(ctx context.Context) (EvalReport, error) {
	sum, score, err := e.evaluateOwn(ctx)
	if err != nil {
		return EvalReport{}, fmt.Errorf("evaluation: %w", err)
	}
	buf := make([]float32, evalCounts+exact.Floats*len(score.Counts))
	if exact.Fits(sum.Value()) {
		sum.Put(buf[evalLoss:])
	} else {
		buf[evalNonfinite] = 1
	}
	exact.Put(buf[evalTokens:], float64(score.Targets))
	for i, n := range score.Counts {
		exact.Put(buf[evalCounts+i*exact.Floats:], float64(n))
	}
	if e.ring.Peers != nil {
		if err := e.ring.Peers.AllReduce(ctx, buf); err != nil {
			return EvalReport{}, fmt.Errorf("evaluation: %w", err)
		}
		e.exchange.lastSum = e.cfg.Now()
	}
	count := func(at int) int64 {
		sum := exact.Take(buf[at:])
		return int64(sum.Value())
	}
	sum, score.Targets = exact.Take(buf[evalLoss:]), count(evalTokens)
	for i := range score.Counts {
		score.Counts[i] = count(evalCounts + i*exact.Floats)
	}
	report := EvalReport{Step: e.progress.Step, Tokens: score.Targets}
	if report.Tokens == 0 {
		return report, errors.New("evaluation: the data have no target")
	}
	score.Loss = sum.Value()
	if buf[evalNonfinite] != 0 {
		score.Loss = math.NaN()
	}
	report.Loss = score.Loss / float64(report.Tokens)
	report.Metrics = e.task.Metrics(score)
	return report, nil
}

// evaluateOwn returns the exact loss and the score on this rank's lanes. It computes the lanes in
// the same groups as training.
func (e *evaluator) evaluateOwn(ctx context.Context) (sum exact.Sum, own Score, err error) {
	own.Counts = make([]int64, e.task.Counters())
	for _, lanes := range e.groups {
		err := e.seat.Evaluate(ctx, lanes, func(part Score) {
			e.beat() // a long evaluation has no steps
			sum.Add(part.Loss)
			own.Targets += part.Targets
			for i, n := range part.Counts {
				own.Counts[i] += n
			}
		})
		if err != nil {
			return sum, own, err
		}
	}
	return sum, own, nil
}
