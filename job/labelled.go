package job

import (
	"context"
	"errors"
	"fmt"
	"io"

	"rondo/compute"
	"rondo/corpus/examples"
	"rondo/internal/app"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
	"rondo/task/hmm"
	"rondo/task/label"
	"rondo/task/lines"
	"rondo/telemetry"
)

// labelled is the Data of the tasks of labels.
type labelled struct{ *exampleData }

func openLabelled(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	d, err := openExampleData(ctx, spec, 0)
	return labelled{d}, err
}

// labellerNetwork is the network of a task of labels whose data are examples.
func labellerNetwork(spec *rondov1.JobSpec, data Extent) (Network, error) {
	return networkOfLabels(spec, data, mostTokens(spec, data.Longest))
}

// networkOfLabels is the network of a task of labels. steps is the longest example.
func networkOfLabels(spec *rondov1.JobSpec, data Extent, steps int) (Network, error) {
	c, err := labellerConfig(spec, data)
	if err != nil {
		return Network{}, err
	}
	return Network{Tensors: c.Layout(), Tokens: c.Vocab, data: exampleBytes * data.Rows,
		make: func(on compute.Device) (weights, error) { return model.NewLabeller(c, on) },
		size: func(on compute.Sizer, lanes int) (work, evaluation compute.Size) {
			work = c.PassSize(on, steps, lanes)
			if spec.Task == task.LM && spec.SampleTokens > 0 {
				work = work.And(c.PassSize(on, steps, 1))
			}
			return work, evaluation
		}}, nil
}

// NewTask implements Data.
func (d labelled) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	e, err := taskOf(d.spec)
	if err != nil {
		return nil, err
	}
	c, err := labellerConfig(d.spec, d.Extent())
	if err != nil {
		return nil, err
	}
	c.GradientTail = tail
	l, err := model.NewLabeller(c, device)
	if err != nil {
		return nil, err
	}
	reads := label.Config{Training: &label.Examples{Data: d.training, Pool: c.Pool},
		EvalData: d.EvalData(), Ledger: ledger, Counter: e.counter(d.Outputs())}
	if d.evaluation != nil {
		reads.Evaluation = &label.Examples{Data: *d.evaluation, Pool: c.Pool}
	}
	return &Task{close: l.Close, Task: label.New(l, reads)}, nil
}

// mostConfused bounds the labels of a table of confusion.
const mostConfused = 64

// evaluateLabels measures a network of a task of labels on a file of examples.
func evaluateLabels(
	ctx context.Context, t *Trained, source string, _ Search,
) (e telemetry.Eval, err error) {
	of, err := taskOf(t.Spec)
	if err != nil {
		return e, err
	}
	set, err := OpenExamples(ctx, t.Spec, source, t.Vocabulary, t.Outputs, 0)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	counter := of.counter(t.Outputs)
	counts := make([]int64, counter.Counters())
	var confusion [][]int64
	if len(t.Outputs) <= mostConfused {
		for range t.Outputs {
			confusion = append(confusion, make([]int64, len(t.Outputs)))
		}
	}
	network := t.weights.(*model.Labeller)
	score, err := label.Score(ctx, network, set, func(predicted, right []int32) {
		counter.Count(counts, predicted, right)
		for i := range right {
			if confusion != nil {
				confusion[right[i]][predicted[i]]++
			}
		}
	})
	if err != nil {
		return e, err
	}
	e = t.scored(score.Loss, score.Targets, counter.Metrics(counts)...)
	if confusion != nil {
		e.Labels, e.Confusion = t.Outputs, confusion
	}
	return e, nil
}

// Label predicts the labels of the lines of standard input, with a network of classify, tag or
// tree. For hmm they are numbers of hidden states.
func (t *Trained) Label(
	ctx context.Context, in io.Reader, each func(label.Line) error,
) error {
	if m, ok := t.weights.(*hmm.Model); ok {
		return t.input(t.states(ctx, m, in, each))
	}
	if network, ok := t.weights.(*model.Tree); ok {
		return t.input(t.trees(ctx, network, in, each))
	}
	p := label.NewPredictor(t.weights.(*model.Labeller), int(t.Spec.MaxLength))
	defer p.Close()
	return t.input(p.Lines(ctx, in, t.encode, t.Outputs, each))
}

// encode returns a line's tokens.
func (t *Trained) encode(line string) ([]int32, error) {
	return t.Vocabulary.Encode(Tokenizer(t.Spec), line)
}

// input marks an error in a line of standard input as the user's.
func (t *Trained) input(err error) error {
	var wrong *lines.Error
	if errors.As(err, &wrong) {
		return app.Usage(fmt.Errorf("standard input, %w", wrong))
	}
	return err
}

// labellerConfig is the network of a job of a task of labels.
func labellerConfig(spec *rondov1.JobSpec, data Extent) (l model.LabellerConfig, err error) {
	c, err := ModelConfig(spec, data.Tokens)
	if err != nil {
		return l, err
	}
	l = model.LabellerConfig{Cell: c.Cell, Vocab: c.Vocab, Embed: c.Embed, Hidden: c.Hidden,
		Layers: c.Layers, Bidirectional: spec.Bidirectional, Dropout: c.Dropout,
		HiddenBackward: c.HiddenBackward,
		DropoutInput:   c.DropoutInput, DropoutLocked: c.DropoutLocked, LayerNorm: c.LayerNorm,
		DropoutOutput: c.DropoutOutput, DropoutWords: c.DropoutWords, WeightDrop: c.WeightDrop,
		Skip: c.Skip, SkipThroughTime: c.SkipThroughTime,
		DeepInput: c.DeepInput, DeepTransition: c.DeepTransition,
		DeepOutput: c.DeepOutput, LabelSmoothing: c.LabelSmoothing, Labels: data.Outputs,
		Init: c.Init, ForgetBias: c.ForgetBias, Leak: c.Leak, Periods: c.Periods, Seed: c.Seed}
	if e, _ := taskOf(spec); e.examples == examples.Labelled { // one label for all steps
		if l.Pool, err = model.ParsePool(spec.Pool); err != nil {
			return l, app.Usage(err)
		}
	}
	if spec.Task == task.Fill {
		l.Pool, l.Places = model.PoolPlaces, hiddenBlanks(spec, 0).Count(int(spec.Bptt))
	}
	return l, app.Usage(l.Validate())
}
