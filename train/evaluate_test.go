package train

import (
	"context"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"rondo/compute/cpu"
	"rondo/model"
)

// oneText is an evaluation of a text cut into G rows. The last rows may be shorter or empty.
type oneText struct {
	ids []int32
	row int // targets of a full row
}

func newEvaluation(n int) *oneText { return &oneText{text(n), (n - 1 + testG - 1) / testG} }

func (e *oneText) Segments() int64 { return int64((e.row + testT - 1) / testT) }

func (e *oneText) Fill(ctx context.Context, segment int64, first, count int,
	inputs, targets []int32) error {
	for b := range count {
		for t := range testT {
			inputs[t*count+b], targets[t*count+b] = 0, -1
			in := int(segment)*testT + t
			at := (first+b)*e.row + in
			if in < e.row && at+1 < len(e.ids) {
				inputs[t*count+b], targets[t*count+b] = e.ids[at], e.ids[at+1]
			}
		}
	}
	return ctx.Err()
}

// Every target counts once on any number of ranks, and the loss equals that of the rows computed
// separately.
func TestEvaluation(t *testing.T) {
	for _, n := range []int{2, 13, 60, 250} {
		evaluation := newEvaluation(n)
		want := rowByRow(t, newJob(1).model, evaluation)
		for _, ranks := range []int{1, 2, 3, 5} {
			j := newJob(ranks)
			// The rate is so small that the parameters do not change.
			j.config.Steps, j.config.Schedule.Rate = 1, 1e-30
			j.evaluation = evaluation
			o := j.mustRun(t)
			if len(o.evals) != 1 || !reflect.DeepEqual(*o.result.Eval, o.evals[0]) {
				t.Fatalf("%d evaluations", len(o.evals))
			}
			got := o.evals[0]
			if got.Tokens != int64(n-1) || got.Step != 1 || math.Abs(got.Loss-want) > 1e-6 {
				t.Errorf("%d tokens, %d ranks: %+v; want a loss of %v", n, ranks, got, want)
			}
		}
	}
}

// rowByRow computes a fresh model's mean loss over the rows, each in its own lane, one token at a
// time.
func rowByRow(t *testing.T, cfg model.Config, e *oneText) float64 {
	t.Helper()
	dev, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	m, err := model.New(cfg, dev)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	one, err := m.NewEvaluator(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	sum, count := 0.0, 0
	for at := range len(e.ids) - 1 {
		if at%e.row == 0 {
			one.ZeroState()
		}
		loss, n, err := one.Evaluate(e.ids[at:at+1], e.ids[at+1:at+2])
		if err != nil {
			t.Fatal(err)
		}
		sum += loss
		count += n
	}
	return sum / float64(count)
}

// Evaluation happens when it is due, and does not change the training.
func TestEvaluationIsDue(t *testing.T) {
	for name, c := range map[string]struct {
		every, steps int64
		want         []int64
	}{
		"interval":      {4, 12, []int64{4, 8, 12}},
		"and at end":    {4, 10, []int64{4, 8, 10}},
		"by epoch":      {0, 20, []int64{9, 18, 20}},
		"once, at last": {50, 7, []int64{7}},
	} {
		j := newJob(2)
		j.config.Steps = c.steps
		plain := j.mustRun(t)
		j.evaluation, j.config.EvalEvery = newEvaluation(100), c.every
		o := j.mustRun(t)
		var got []int64
		for _, e := range o.evals {
			got = append(got, e.Step)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: at %v, want %v", name, got, c.want)
		}
		if !slices.Equal(o.losses(), plain.losses()) || !sameBits(o.params, plain.params) {
			t.Errorf("%s: evaluation changed the training", name)
		}
	}
}

type emptyText struct{ *oneText }

func (emptyText) Fill(_ context.Context, _ int64, _, _ int, _, targets []int32) error {
	for i := range targets {
		targets[i] = -1
	}
	return nil
}

type brokenText struct{ *oneText }

func (brokenText) Fill(context.Context, int64, int, int, []int32, []int32) error { return errTest }

func TestEvaluationFails(t *testing.T) {
	j := newJob(1)
	j.config.EvalEvery = 2
	for want, e := range map[string]Evaluation{
		"step 2: evaluation: the data have no target": emptyText{newEvaluation(9)},
		"step 2: evaluation: it broke":                brokenText{newEvaluation(9)},
	} {
		j.evaluation = e
		if o := j.run(t)[0]; o.err == nil || !strings.Contains(o.err.Error(), want) {
			t.Errorf("%v; want %q", o.err, want)
		}
	}
}
