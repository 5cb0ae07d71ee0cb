package train

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
)

// Evaluation is a text to evaluate on, cut into the same number of lanes as the training batch,
// and into segments of T tokens. All its segments of all lanes together have every target once.
type Evaluation interface {
	Segments() int64
	// Fill reads a segment of the lanes [first, first+count): inputs and targets, each
	// [T, count]; a target of -1 does not count. It is called by one goroutine at a time, which
	// is not Run's, while Batches.Fill may run in another.
	Fill(ctx context.Context, segment int64, first, count int, inputs, targets []int32) error
}

// What the ranks add up for an evaluation.
const (
	evalLoss      = 0               // exact: the loss summed over targets
	evalTokens    = exactFloats     // exact: the targets that count
	evalNonfinite = 2 * exactFloats // ranks whose loss is not finite
	evalSize      = evalNonfinite + 1
)

// evaluate computes the mean loss over the whole text. Each rank reads its own lanes, from a state
// of zeros; the sums do not depend on how the lanes are dealt.
func (t *Trainer) evaluate(ctx context.Context) (EvalReport, error) {
	sum, tokens, err := t.evaluateOwn(ctx)
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
	if t.ring.Reducer != nil {
		if err := t.ring.Reducer.AllReduce(ctx, buf[:]); err != nil {
			return EvalReport{}, fmt.Errorf("evaluation: %w", err)
		}
		t.exchange.met = t.cfg.Now()
	}
	sum, counted := takeExact(buf[evalLoss:]), takeExact(buf[evalTokens:])
	report := EvalReport{Step: t.progress.Step, Tokens: int64(counted.value())}
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
func (t *Trainer) evaluateOwn(ctx context.Context) (sum exactSum, tokens int64, err error) {
	reader := readAhead(ctx, t.cfg.Evaluation.Fill, t.cfg.BPTT*t.groups[0].count,
		t.evaluationSpans())
	defer reader.close()
	for at := range t.evaluationSpans() {
		if at.segment == 0 {
			t.segment.ZeroEvaluationState()
		}
		b, err := reader.next(ctx)
		if err != nil {
			return sum, 0, err
		}
		loss, n, err := t.segment.Evaluate(b.inputs, b.targets)
		if err != nil {
			return sum, 0, err
		}
		sum.add(loss)
		tokens += int64(n)
	}
	return sum, tokens, nil
}

// evaluationSpans are all segments of each of this rank's groups.
func (t *Trainer) evaluationSpans() iter.Seq[span] {
	return func(yield func(span) bool) {
		for _, lanes := range t.groups {
			for segment := range t.cfg.Evaluation.Segments() {
				if !yield(span{segment, lanes}) {
					return
				}
			}
		}
	}
}
