package job

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"rondo/compute"
	"rondo/corpus"
	"rondo/internal/app"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/count"
	"rondo/task/lm"
	"rondo/task/ngram"
	"rondo/telemetry"
)

// countedExamples is the part of a Data whose lanes read examples of --bptt tokens. The tokens of a
// time series are the numbers of its rows.
type countedExamples struct {
	job   *rondov1.JobSpec
	reads *count.Text
}

// withoutSampler is a job with a sampler of segments, which is not used.
func withoutSampler(spec *rondov1.JobSpec) *rondov1.JobSpec {
	spec = proto.CloneOf(spec)
	spec.Batch, spec.Bptt = 1, 1
	return spec
}

// SegmentsPerEpoch implements Data.
func (d countedExamples) SegmentsPerEpoch() int64 { return d.reads.Segments() }

// Batches implements Data.
func (d countedExamples) Batches() corpus.SamplerConfig {
	return corpus.SamplerConfig{Tokens: d.reads.Examples(), Lanes: int(d.job.Batch),
		Seed: d.job.Seed, Sampling: corpus.Examples}
}

// Offset implements Data: the number of the example that the lane reads, or -1.
func (d countedExamples) Offset(segment int64, lane int) int64 {
	return d.reads.Example(segment, lane)
}

// countedText is the Data of the task ngram.
type countedText struct {
	*Text
	countedExamples
	index *ngram.Index
}

// openCounted opens a text and lists its n-grams.
func openCounted(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	opened, err := openText(ctx, withoutSampler(spec))
	if err != nil {
		return nil, err
	}
	text := opened.(*Text)
	index, err := ngram.NewIndex(ctx, text.training, int(spec.Order))
	if err != nil {
		if ctx.Err() == nil {
			err = app.Usage(fmt.Errorf("corpus %s: %w", spec.Corpus, err))
		}
		return nil, errors.Join(err, text.Close())
	}
	reads := count.NewText(text.training, spec.Order-1, int(spec.Batch), int(spec.Bptt))
	return countedText{text, countedExamples{spec, reads}, index}, nil
}

// countedConfig is the model of a job of the task ngram.
func countedConfig(spec *rondov1.JobSpec, data Extent) (c ngram.Config, err error) {
	c = ngram.Config{Order: int(spec.Order), Vocabulary: data.Tokens, Grams: data.Grams}
	c.Smoothing, err = ngram.ParseSmoothing(spec.Smoothing)
	return c, app.Usage(err)
}

// Host memory of an n-gram, in bytes: in the list of a text's, while that is made, and in an
// estimator, for each token of its order.
const (
	indexedBytes   = 80
	estimatedBytes = 40
)

// countedNetwork is the network of the task ngram: its counts.
func countedNetwork(spec *rondov1.JobSpec, data Extent) (Network, error) {
	c, err := countedConfig(spec, data)
	if err != nil {
		return Network{}, err
	}
	return Network{Tensors: ngram.Layout(c), Tokens: c.Vocabulary,
		data: int64(c.Grams) * (indexedBytes + estimatedBytes*spec.Order),
		make: func(on compute.Device) (weights, error) { return ngram.NewModel(c, nil, on) },
		size: func(on compute.Sizer, lanes int) (work, evaluation compute.Size) {
			tokens := int(spec.Bptt+spec.Order) * lanes // two batches, one of them in use
			return on.TensorSize(c.Grams * (c.Order + 1)).And(on.TensorSize(2 * tokens)), evaluation
		}}, nil
}

// NewTask implements Data: the counts of the n-grams.
func (d countedText) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	c, err := countedConfig(d.job, d.Extent())
	if err != nil {
		return nil, err
	}
	reads := count.Config{Training: d.reads, EvalData: d.EvalData(), Ledger: ledger, Tail: tail}
	if d.validation != nil {
		reads.Evaluation = count.NewText(d.validation, 1, int(d.job.Batch), int(d.job.Bptt))
	}
	m, err := ngram.NewModel(c, d.index, device)
	if err != nil {
		return nil, err
	}
	return d.newCounting(m, reads)
}

// newCounting makes the task of a model of texts, which it closes.
func (d *Text) newCounting(m interface {
	countedModel
	NewGenerator() (lm.Generator, error)
}, reads count.Config) (*Task, error) {
	w, err := d.writer()
	if err != nil {
		m.Close()
		return nil, err
	}
	t, err := newCounting(m, reads)
	if w != nil && err == nil {
		t.Sample = func(ctx context.Context, step int64) (string, error) {
			g, err := m.NewGenerator()
			if err != nil {
				return "", err
			}
			return w.At(step).Write(ctx, g)
		}
	}
	return t, err
}

// countedModel is a model that newCounting closes.
type countedModel interface {
	count.Model
	Close()
}

// newCounting makes the task of a model, which it closes.
func newCounting(m countedModel, c count.Config) (*Task, error) {
	t, err := count.New(m, c)
	if err != nil {
		m.Close()
		return nil, err
	}
	return &Task{Task: t, close: func() {
		t.Close()
		m.Close()
	}}, nil
}

// Extent implements Data.
func (d countedText) Extent() Extent {
	return Extent{Tokens: d.Vocabulary().Len(), Grams: d.index.Len()}
}

// evaluateCounted measures a model of n-grams on a text.
func evaluateCounted(
	ctx context.Context, t *Trained, source string, _ Search,
) (telemetry.Eval, error) {
	return t.scoreText(ctx, source, func(text corpus.Tokens) (float64, int64, error) {
		return count.Score(ctx, t.weights.(*ngram.Model), text)
	})
}
