package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"rondo/checkpoint/bucket"
	"rondo/compute"
	"rondo/corpus"
	"rondo/corpus/examples"
	"rondo/internal/app"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task"
	"rondo/task/classify"
	"rondo/task/example"
	"rondo/task/label"
	"rondo/task/tag"
	"rondo/telemetry"
)

// Labelled is the Data of the tasks classify and tag.
type Labelled struct {
	spec       *rondov1.JobSpec
	set        *examples.Set // all of --corpus
	training   example.Data
	evaluation *example.Data // nil if there is nothing to evaluate on
	evaluated  *examples.Set // --eval-corpus, or nil
}

// openLabelled opens the job's examples, and those to evaluate on if it has any.
func openLabelled(ctx context.Context, spec *rondov1.JobSpec) (*Labelled, error) {
	set, err := OpenExamples(ctx, spec, spec.Corpus, nil, nil)
	if err != nil {
		return nil, err
	}
	d := &Labelled{spec: spec, set: set}
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// OpenExamples opens a file of examples for the job's task. With a nil vocabulary it builds one,
// and with nil labels it takes those of the file.
func OpenExamples(
	ctx context.Context, spec *rondov1.JobSpec, source string, vocabulary *corpus.Vocabulary,
	labels []string,
) (*examples.Set, error) {
	c := examples.Config{Source: source, Kind: examples.Labelled, Tokenizer: Tokenizer(spec),
		MinFrequency: spec.MinFrequency, MaxLength: int(spec.MaxLength), Vocabulary: vocabulary,
		Labels: labels, OpenBucket: bucket.Open}
	if spec.Task == task.Tag {
		c.Kind = examples.Tagged
	}
	if vocabulary == nil {
		c.MaxExamples = spec.MaxExamples
	}
	set, err := examples.Open(ctx, c)
	if err != nil && ctx.Err() == nil && !transient(err) {
		return nil, app.Usage(err)
	}
	return set, err
}

func (d *Labelled) open(ctx context.Context) (err error) {
	spec, training := d.spec, d.set
	var held *examples.Set
	if spec.ValidationFraction > 0 {
		if training, held, err = d.set.Split(spec.ValidationFraction); err != nil {
			return app.Usage(fmt.Errorf("corpus %s: %w", spec.Corpus, err))
		}
	}
	if spec.EvalCorpus != "" {
		d.evaluated, err = OpenExamples(ctx, spec, spec.EvalCorpus, d.Vocabulary(), d.set.Labels())
		if err != nil {
			return fmt.Errorf("--eval-corpus: %w", err)
		}
		held = d.evaluated
	}
	d.training.Set = training
	d.training.Batches, err = examples.NewBatches(training,
		examples.BatchesConfig{Lanes: int(spec.Batch), Seed: spec.Seed})
	if err != nil {
		return app.Usage(err)
	}
	if held == nil {
		return nil
	}
	d.evaluation = &example.Data{Set: held}
	d.evaluation.Batches, err = examples.NewEvaluation(held, int(spec.Batch))
	return app.Usage(err)
}

// Vocabulary implements Data.
func (d *Labelled) Vocabulary() *corpus.Vocabulary { return d.set.Vocabulary() }

// Labels implements Data.
func (d *Labelled) Labels() []string { return d.set.Labels() }

// Fingerprint implements Data.
func (d *Labelled) Fingerprint() string { return d.set.Fingerprint() }

// SegmentsPerEpoch implements Data.
func (d *Labelled) SegmentsPerEpoch() int64 { return d.training.Batches.SegmentsPerEpoch() }

// Sizes implements Data.
func (d *Labelled) Sizes() (training, evaluation int64) {
	if d.evaluation != nil {
		evaluation = d.evaluation.Set.Tokens()
	}
	return d.training.Set.Tokens(), evaluation
}

// EvalData implements Data.
func (d *Labelled) EvalData() int64 {
	if d.evaluation == nil {
		return 0
	}
	return dataHash(d.evaluation.Set.Fingerprint())
}

// Batches implements Data.
func (d *Labelled) Batches() corpus.SamplerConfig {
	return corpus.SamplerConfig{Tokens: d.training.Set.Len(), Lanes: int(d.spec.Batch),
		Seed: d.spec.Seed, Sampling: corpus.Examples}
}

// Offset implements Data: the number of the example that the lane reads, or -1.
func (d *Labelled) Offset(segment int64, lane int) int64 {
	return d.training.Batches.Example(segment, lane)
}

// Network implements Data.
func (d *Labelled) Network() (Network, error) {
	return NetworkOf(d.spec, d.Vocabulary().Len(), len(d.Labels()))
}

// NewTask implements Data: classify or tag.
func (d *Labelled) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	c, err := LabellerConfig(d.spec, d.Vocabulary().Len(), len(d.Labels()))
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
		Counter: Counter(d.spec, d.Labels())})}, nil
}

// Counter is what the job's task counts in an evaluation.
func Counter(spec *rondov1.JobSpec, labels []string) label.Counter {
	if spec.Task == task.Tag {
		return tag.NewCounter(labels)
	}
	return classify.Counter{Labels: len(labels)}
}

// Close releases the token files.
func (d *Labelled) Close() error {
	err := d.set.Close()
	if d.evaluated != nil {
		err = errors.Join(err, d.evaluated.Close())
	}
	return err
}

// mostConfused bounds the labels of a table of confusion.
const mostConfused = 64

// EvaluateLabels measures a network of classify or tag on a file of examples.
func (t *Trained) EvaluateLabels(ctx context.Context, source string) (e telemetry.Eval, err error) {
	set, err := OpenExamples(ctx, t.Spec, source, t.Vocabulary, t.Labels)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	counter := Counter(t.Spec, t.Labels)
	counts := make([]int64, counter.Counters())
	if len(t.Labels) <= mostConfused {
		e.Labels = t.Labels
		for range t.Labels {
			e.Confusion = append(e.Confusion, make([]int64, len(t.Labels)))
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
	e.Step, e.Tokens, e.Loss = t.Step, score.Targets, score.Loss/float64(score.Targets)
	e.Perplexity, e.BitsPerToken = telemetry.Perplexity(e.Loss), e.Loss/math.Ln2
	for _, m := range counter.Metrics(counts) {
		e.Metrics = append(e.Metrics, telemetry.Metric(m))
	}
	return e, err
}

// Label predicts the labels of the lines of a text, with a network of classify or tag.
func (t *Trained) Label(
	ctx context.Context, in io.Reader, each func(label.Line) error,
) error {
	p, err := label.NewPredictor(t.Labeller, int(t.Spec.MaxLength))
	if err != nil {
		return err
	}
	defer p.Close()
	encode := func(line string) ([]int32, error) {
		return t.Vocabulary.Encode(Tokenizer(t.Spec), line)
	}
	return app.Usage(p.Lines(ctx, in, encode, t.Labels, each))
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
		DropoutInput: c.DropoutInput, Labels: labels, Init: c.Init, ForgetBias: c.ForgetBias,
		Seed: c.Seed}
	if spec.Task == task.Classify {
		if l.Pool, err = model.ParsePool(spec.Pool); err != nil {
			return l, app.Usage(err)
		}
	}
	return l, app.Usage(l.Validate())
}
