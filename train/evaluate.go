package train

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// What the ranks add up for an evaluation.
const (
	evalLoss      = 0               // exact: the loss summed over targets
	evalTokens    = exactFloats     // exact: the targets that count
	evalNonfinite = 2 * exactFloats // ranks whose loss is not finite
	evalSize      = evalNonfinite + 1
)

// evaluator evaluates between steps.
type evaluator struct {
	*batch
	evaluated *EvalReport // the last
}

// evaluate computes the mean loss over the whole text. Each rank reads its own lanes, from a state
// of zeros; the sums do not depend on how the lanes are dealt.
func (e *evaluator) evaluate(ctx context.Context) (EvalReport, error) {
	sum, tokens, err := e.evaluateOwn(ctx)
	if err != nil {
		return EvalReport{}, fmt.Errorf("evaluation: %w", err)
	}
	var buf [evalSize]float32
	if exactable(sum.value()) {
		sum.put(buf[evalLoss:])
	} else {
		buf[evalNonfinite] = 1
	}
	putExact(buf[evalTokens:], float64(tokens))
	if e.ring.Peers != nil {
		if err := e.ring.Peers.AllReduce(ctx, buf[:]); err != nil {
			return EvalReport{}, fmt.Errorf("evaluation: %w", err)
		}
		e.exchange.met = e.cfg.Now()
	}
	sum, counted := takeExact(buf[evalLoss:]), takeExact(buf[evalTokens:])
	report := EvalReport{Step: e.progress.Step, Tokens: int64(counted.value())}
	if report.Tokens == 0 {
		return report, errors.New("evaluation: the text has no target")
	}
	report.Loss = sum.value() / float64(report.Tokens)
	if buf[evalNonfinite] != 0 {
		report.Loss = math.NaN()
	}
	return report, nil
}

// evaluateOwn returns the loss summed over the targets of this rank's lanes, and their number. The
// lanes are computed in the groups in which they are trained.
func (e *evaluator) evaluateOwn(ctx context.Context) (sum exactSum, targets int64, err error) {
	for _, lanes := range e.groups {
		err := e.seat.Evaluate(ctx, lanes, func(lossSum float64, n int) {
			sum.add(lossSum)
			targets += int64(n)
		})
		if err != nil {
			return sum, 0, err
		}
	}
	return sum, targets, nil
}
