package job

import (
	"context"
	"errors"
	"fmt"

	"rondo/checkpoint/bucket"
	"rondo/corpus"
	"rondo/corpus/examples"
	"rondo/internal/app"
	"rondo/job/jobspec"
	"rondo/model"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/example"
	"rondo/task/translate"
)

// exampleData is the common part of the Data of tasks of examples.
type exampleData struct {
	spec       *rondov1.JobSpec
	set        *examples.Set // all of --corpus
	training   example.Data
	evaluation *example.Data // nil if there is nothing to evaluate on
	evaluated  *examples.Set // --eval-corpus, or nil
	rows       int           // of the table beside examples.Described
}

// openExampleData opens the job's examples, and those to evaluate on if it has any. rows is the
// number of rows of the table beside them; 0: there is none.
func openExampleData(
	ctx context.Context, spec *rondov1.JobSpec, rows int,
) (*exampleData, error) {
	set, err := OpenExamples(ctx, spec, spec.Corpus, nil, nil, rows)
	if err != nil {
		return nil, err
	}
	d := &exampleData{spec: spec, set: set, rows: rows}
	if err := d.open(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// OpenExamples opens a file of examples for the job's task. The vocabulary and the outputs are
// those of an earlier run: see Data. With nil it takes those of the file.
func OpenExamples(
	ctx context.Context, spec *rondov1.JobSpec, source string, vocabulary *corpus.Vocabulary,
	outputs []string, rows int,
) (set *examples.Set, err error) {
	e, err := taskOf(spec)
	if err != nil {
		return nil, err
	}
	c := examples.Config{Source: source, Kind: e.examples, Tokenizer: Tokenizer(spec),
		MinFrequency: spec.MinFrequency, MaxLength: int(spec.MaxLength), Vocabulary: vocabulary,
		SubwordFile: jobspec.TokenizerFile(spec), Subwords: int(spec.VocabularySize),
		Rows: int64(rows), OpenBucket: bucket.Open}
	switch c.Kind {
	case examples.Stories:
		c.Labels, c.Reserved = outputs, []string{examples.Stop}
	case examples.Labelled, examples.Tagged:
		c.Labels = outputs
	case examples.Trees:
		cell, err := model.ParseTreeCell(spec.TreeCell)
		if err != nil {
			return nil, app.Usage(err)
		}
		c.Labels, c.Binary = outputs, cell.Binary()
	default:
		c.Reserved = []string{translate.Begin, translate.End}
		if outputs != nil {
			if c.TargetVocabulary, err = corpus.NewVocabulary(outputs); err != nil {
				return nil, err
			}
		}
	}
	if vocabulary == nil {
		c.MaxExamples = spec.MaxExamples
	}
	set, err = examples.Open(ctx, c)
	if wrong, ok := errors.AsType[*corpus.FormatError](err); ok {
		wrong.By = "--task " + spec.Task
	}
	if err != nil && ctx.Err() == nil && !transient(err) {
		return nil, app.Usage(err)
	}
	return set, err
}

func (d *exampleData) open(ctx context.Context) (err error) {
	spec, training := d.spec, d.set
	var held *examples.Set
	if spec.ValidationFraction > 0 {
		if training, held, err = d.set.Split(spec.ValidationFraction); err != nil {
			return app.Usage(fmt.Errorf("corpus %s: %w", spec.Corpus, err))
		}
	}
	if spec.EvalCorpus != "" {
		d.evaluated, err = OpenExamples(ctx, spec, spec.EvalCorpus, d.Vocabulary(), d.Outputs(),
			d.rows)
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
func (d *exampleData) Vocabulary() *corpus.Vocabulary { return d.set.Vocabulary() }

// Outputs implements Data.
func (d *exampleData) Outputs() []string {
	if target := d.set.TargetVocabulary(); target != nil {
		return target.Tokens()
	}
	return d.set.Labels()
}

// Fingerprint implements Data.
func (d *exampleData) Fingerprint() string { return d.set.Fingerprint() }

// SegmentsPerEpoch implements Data.
func (d *exampleData) SegmentsPerEpoch() int64 { return d.training.Batches.SegmentsPerEpoch() }

// Sizes implements Data.
func (d *exampleData) Sizes() (training, evaluation int64) {
	if d.evaluation != nil {
		evaluation = d.evaluation.Set.Tokens()
	}
	return d.training.Set.Tokens(), evaluation
}

// EvalData implements Data.
func (d *exampleData) EvalData() int64 {
	if d.evaluation == nil {
		return 0
	}
	return dataHash(d.evaluation.Set.Fingerprint())
}

// Batches implements Data.
func (d *exampleData) Batches() corpus.SamplerConfig {
	return corpus.SamplerConfig{Tokens: d.training.Set.Len(), Lanes: int(d.spec.Batch),
		Seed: d.spec.Seed, Sampling: corpus.Examples}
}

// Offset implements Data: the number of the example that the lane reads, or -1.
func (d *exampleData) Offset(segment int64, lane int) int64 {
	return d.training.Batches.Example(segment, lane)
}

// Extent implements Data.
func (d *exampleData) Extent() Extent {
	e := Extent{Tokens: d.Vocabulary().Len(), Outputs: len(d.Outputs()), Rows: d.set.Len(),
		Longest: d.set.Longest()}
	if d.set.TargetVocabulary() != nil {
		e.LongestTarget = d.set.LongestTarget()
	}
	return e
}

// Close releases the token files.
func (d *exampleData) Close() error {
	err := d.set.Close()
	if d.evaluated != nil {
		err = errors.Join(err, d.evaluated.Close())
	}
	return err
}
