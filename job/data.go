// Package job turns a JobSpec into a corpus and its lanes, a model, a training configuration and a
// checkpoint folder. Workers and commands share it.
package job

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"rondo/checkpoint/bucket"
	"rondo/corpus"
	"rondo/internal/app"
	rondov1 "rondo/proto/rondo/v1"
)

// Data is a job's text, cut into lanes.
type Data struct {
	Corpus     *corpus.Corpus
	Train      corpus.Tokens
	Sampler    *corpus.Sampler
	Validation corpus.Tokens // nil if there is nothing to evaluate on

	evaluated *corpus.Corpus
}

// Tokenizer is the spec's way to split text.
func Tokenizer(spec *rondov1.JobSpec) corpus.Tokenizer {
	return corpus.Tokenizer{Unit: corpus.Unit(spec.Tokenizer),
		Normalize: corpus.Normalization(spec.Normalize)}
}

// OpenCorpus opens the job's training text; with a nil vocabulary it builds one.
func OpenCorpus(
	ctx context.Context, spec *rondov1.JobSpec, vocabulary *corpus.Vocabulary,
) (*corpus.Corpus, error) {
	return openText(ctx, spec.Corpus, spec.MaxTokens, spec, vocabulary)
}

// OpenText opens another text as a whole, tokenised like the job's, with the given vocabulary.
func OpenText(
	ctx context.Context, source string, spec *rondov1.JobSpec, vocabulary *corpus.Vocabulary,
) (*corpus.Corpus, error) {
	return openText(ctx, source, 0, spec, vocabulary)
}

func openText(
	ctx context.Context, source string, maxTokens int64, spec *rondov1.JobSpec,
	vocabulary *corpus.Vocabulary,
) (*corpus.Corpus, error) {
	c, err := corpus.Open(ctx, corpus.Config{
		Source:       source,
		Tokenizer:    Tokenizer(spec),
		MinFrequency: spec.MinFrequency,
		MaxTokens:    maxTokens,
		Vocabulary:   vocabulary,
		OpenBucket:   bucket.Open,
	})
	if err != nil && ctx.Err() == nil && !transient(err) {
		return nil, app.Usage(err)
	}
	return c, err
}

// OpenData opens the job's corpus, and its evaluation text if it has one.
func OpenData(ctx context.Context, spec *rondov1.JobSpec) (*Data, error) {
	text, err := OpenCorpus(ctx, spec, nil)
	if err != nil {
		return nil, err
	}
	d := &Data{Corpus: text}
	if err := d.open(ctx, spec); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *Data) open(ctx context.Context, spec *rondov1.JobSpec) (err error) {
	if d.Corpus.Vocabulary().Len() < 2 {
		return app.Usagef("corpus %s: every token is rarer than --min-frequency %d: lower it",
			spec.Corpus, spec.MinFrequency)
	}
	d.Train = d.Corpus.Tokens()
	if spec.ValidationFraction > 0 {
		d.Train, d.Validation, err = corpus.Split(d.Train, spec.ValidationFraction)
		if err != nil {
			return app.Usage(err)
		}
	}
	if spec.EvalCorpus != "" {
		d.evaluated, err = OpenText(ctx, spec.EvalCorpus, spec, d.Corpus.Vocabulary())
		if err != nil {
			return fmt.Errorf("--eval-corpus: %w", err)
		}
		d.Validation = d.evaluated.Tokens()
	}
	if d.Validation != nil && d.Validation.Len() < 2 {
		return app.Usagef("the text to evaluate on has %d tokens and needs 2: raise "+
			"--validation-fraction, or give a longer --eval-corpus", d.Validation.Len())
	}
	d.Sampler, err = corpus.NewSampler(corpus.SamplerConfig{
		Tokens:   d.Train.Len(),
		Lanes:    int(spec.Batch),
		BPTT:     int(spec.Bptt),
		Seed:     spec.Seed,
		Sampling: corpus.Sampling(spec.Sampling),
	})
	if err != nil {
		return app.Usage(fmt.Errorf("corpus %s: %w", spec.Corpus, err))
	}
	if segments := spec.Epochs * d.Sampler.SegmentsPerEpoch(); spec.Epochs > 0 &&
		segments < spec.Accumulate {
		return app.Usagef("--accumulate %d: --epochs %d have %d segments of each lane, less than "+
			"a step: lower it, or raise --epochs", spec.Accumulate, spec.Epochs, segments)
	}
	return nil
}

// EvalText is a fingerprint of the evaluation text; 0: there is none. A float64 holds it exactly.
func (d *Data) EvalText(spec *rondov1.JobSpec) int64 {
	if d.Validation == nil {
		return 0
	}
	text := fmt.Sprintf("%s %v", d.Corpus.Fingerprint(), spec.ValidationFraction)
	if d.evaluated != nil {
		text = d.evaluated.Fingerprint()
	}
	sum := sha256.Sum256([]byte(text))
	return int64(binary.BigEndian.Uint64(sum[:])>>11) | 1
}

// Steps is the number of steps of the whole job: --steps, or the whole steps in --epochs, whichever
// is less.
func (d *Data) Steps(spec *rondov1.JobSpec) int64 {
	steps := spec.Epochs * d.Sampler.SegmentsPerEpoch() / max(1, spec.Accumulate)
	if spec.Steps > 0 && (steps == 0 || spec.Steps < steps) {
		steps = spec.Steps
	}
	return steps
}

// Ending is the reason for the end of a job that completes its last step.
func (d *Data) Ending(spec *rondov1.JobSpec) string {
	if spec.Steps > 0 && d.Steps(spec) == spec.Steps {
		return fmt.Sprintf("--steps %d reached", spec.Steps)
	}
	return fmt.Sprintf("--epochs %d done", spec.Epochs)
}

// Close releases the token files.
func (d *Data) Close() error {
	err := d.Corpus.Close()
	if d.evaluated != nil {
		err = errors.Join(err, d.evaluated.Close())
	}
	return err
}
