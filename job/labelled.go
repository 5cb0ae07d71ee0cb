package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"rondo/compute"
	"rondo/internal/app"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
	"rondo/task/classify"
	"rondo/task/label"
	"rondo/task/lines"
	"rondo/task/tag"
	"rondo/telemetry"
)

// Labelled is the Data of the tasks classify and tag.
type Labelled struct{ *exampleData }

// NewTask implements Data: classify or tag.
func (d Labelled) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	c, err := LabellerConfig(d.spec, d.Vocabulary().Len(), len(d.Outputs()))
	if err != nil {
		return nil, err
	}
	c.GradientTail = tail
	l, err := model.NewLabeller(c, device)
	if err != nil {
		return nil, err
	}
	return &Task{close: l.Close, Task: label.New(l, label.Config{Training: d.training,
		Evaluation: d.evaluation, EvalData: d.EvalData(), Ledger: ledger,
		Counter: Counter(d.spec, d.Outputs())})}, nil
}

// Counter is what the job's task counts in an evaluation.
func Counter(spec *rondov1.JobSpec, labels []string) label.Counter {
	if spec.Task == task.Tag {
		return tag.NewCounter(labels)
	}
	return classify.Counter{Labels: len(labels)}
}

// mostConfused bounds the labels of a table of confusion.
const mostConfused = 64

// EvaluateLabels measures a network of classify or tag on a file of examples.
func (t *Trained) EvaluateLabels(ctx context.Context, source string) (e telemetry.Eval, err error) {
	set, err := OpenExamples(ctx, t.Spec, source, t.Vocabulary, t.Outputs)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	counter := Counter(t.Spec, t.Outputs)
	counts := make([]int64, counter.Counters())
	if len(t.Outputs) <= mostConfused {
		e.Labels = t.Outputs
		for range t.Outputs {
			e.Confusion = append(e.Confusion, make([]int64, len(t.Outputs)))
		}
	}
	score, err := label.Score(ctx, t.Labeller, set, func(predicted, right []int32) {
		counter.Count(counts, predicted, right)
		for i := range right {
			if e.Confusion != nil {
				e.Confusion[right[i]][predicted[i]]++
			}
		}
	})
	if err != nil {
		return e, err
	}
	e.Step, e.Tokens, e.Loss = t.Step, score.Targets, score.Loss/float64(score.Targets)
	e.Perplexity, e.BitsPerToken = telemetry.Perplexity(e.Loss), e.Loss/math.Ln2
	for _, m := range counter.Metrics(counts) {
		e.Metrics = append(e.Metrics, telemetry.Metric(m))
	}
	return e, nil
}

// Label predicts the labels of the lines of standard input, with a network of classify or tag.
func (t *Trained) Label(
	ctx context.Context, in io.Reader, each func(label.Line) error,
) error {
	p, err := label.NewPredictor(t.Labeller, int(t.Spec.MaxLength))
	if err != nil {
		return err
	}
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

// LabellerConfig is the network of a job of the task classify or tag, for a vocabulary and labels
// of these sizes.
func LabellerConfig(spec *rondov1.JobSpec, vocabulary, labels int) (model.LabellerConfig, error) {
	c, err := ModelConfig(spec, vocabulary)
	if err != nil {
		return model.LabellerConfig{}, err
	}
	l := model.LabellerConfig{Cell: c.Cell, Vocab: c.Vocab, Embed: c.Embed, Hidden: c.Hidden,
		Layers: c.Layers, Bidirectional: spec.Bidirectional, Dropout: c.Dropout,
		DropoutInput: c.DropoutInput, DropoutLocked: c.DropoutLocked, LayerNorm: c.LayerNorm,
		Skip: c.Skip, Labels: labels, Init: c.Init, ForgetBias: c.ForgetBias,
		Seed: c.Seed}
	if spec.Task == task.Classify {
		if l.Pool, err = model.ParsePool(spec.Pool); err != nil {
			return l, app.Usage(err)
		}
	}
	return l, app.Usage(l.Validate())
}
