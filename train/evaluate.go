package train

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// Layout of the buffer that the ranks sum for an evaluation.
const (
	evalLoss      = 0               // exact: the loss summed over targets
	evalTokens    = exactFloats     // exact: the targets that count
	evalNonfinite = 2 * exactFloats // ranks whose loss is not finite
	evalSize      = evalNonfinite + 1
)

// evaluator runs evaluations between steps.
type evaluator struct {
	*batch
	evaluated *EvalReport // the last report
}

// evaluate computes the mean loss on all evaluation data. Each rank reads its own lanes from a zero
// state. The sums do not depend on how the lanes are dealt.
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
		e.exchange.lastSum = e.cfg.Now()
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

// evaluateOwn returns the loss summed over the targets of this rank's lanes, and the number of
// targets. It computes the lanes in the same groups as training.
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
