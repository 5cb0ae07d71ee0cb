package job

import (
	"context"

	"rondo/corpus"
	"rondo/internal/app"
	"rondo/task/lm"
)

// sequences are a series' rows as sequences of T rows, of which a lane reads a whole one in a
// segment. It has both forms of task/lm's data: with a sampler those to train on, without one those
// to evaluate on.
type sequences struct {
	numbers corpus.Tokens   // of the sequences
	sampler *corpus.Sampler // nil: in their order
	steps   int             // T
	lanes   int             // of the global batch
}

// divideSequences is segmentData.divide for --sequences.
func (d *Series) divideSequences() (err error) {
	T := int(d.spec.Bptt)
	for _, s := range d.all {
		if s.Rows()%T != 0 {
			return app.Usagef("corpus %s: --sequences are of --bptt %d rows, and it has %d rows: "+
				"give --bptt the rows of a sequence", d.spec.Corpus, T, s.Rows())
		}
	}
	whole := rowNumbers{0, d.all[0].Rows() / T}
	d.training = whole
	if len(d.all) > 1 {
		d.validation = rowNumbers{whole.count, d.all[1].Rows() / T}
	}
	if d.spec.ValidationFraction > 0 {
		d.training, d.validation, err = corpus.Split(whole, d.spec.ValidationFraction)
		if err != nil {
			return app.Usage(err)
		}
	}
	if most := d.training.Len(); most < d.spec.Batch {
		return app.Usagef("corpus %s has %d sequences to train on, and a step reads --batch %d: "+
			"lower it, or give more", d.spec.Corpus, most, d.spec.Batch)
	}
	// A sampler's last token is a target only.
	d.sampler, err = corpus.NewSampler(corpus.SamplerConfig{Tokens: d.training.Len() + 1,
		Lanes: int(d.spec.Batch), BPTT: 1, Seed: d.spec.Seed,
		Sampling: corpus.Sampling(d.spec.Sampling)})
	return app.Usage(err)
}

// Sizes implements Data, in rows.
func (d *Series) Sizes() (training, evaluation int64) {
	training, evaluation = d.segmentData.Sizes()
	if d.spec.Sequences {
		training, evaluation = training*d.spec.Bptt, evaluation*d.spec.Bptt
	}
	return training, evaluation
}

// sequencesConfig configures task/lm.
func (d *Series) sequencesConfig(ledger Ledger) lm.Config {
	c := lm.Config{BPTT: int(d.spec.Bptt), EvalData: d.EvalData(), Ledger: ledger,
		Batches: d.sequences(d.training, d.sampler)}
	if d.validation != nil {
		c.Evaluation = d.sequences(d.validation, nil)
	}
	return c
}

// sequences are those of these numbers.
func (d *Series) sequences(numbers corpus.Tokens, sampler *corpus.Sampler) sequences {
	return sequences{numbers, sampler, int(d.spec.Bptt), int(d.spec.Batch)}
}

// Reset implements lm.Batches.
func (sequences) Reset(int64) bool { return true }

// Lengths implements lm.Batches.
func (s sequences) Lengths() []int { return []int{s.steps} }

// Length implements lm.Batches.
func (s sequences) Length(int64) int { return s.steps }

// SegmentsPerEpoch implements lm.Batches.
func (s sequences) SegmentsPerEpoch() int64 { return s.sampler.SegmentsPerEpoch() }

// Segments implements lm.Evaluation.
func (s sequences) Segments() int64 {
	return (s.numbers.Len() + int64(s.lanes) - 1) / int64(s.lanes)
}

// Fill implements lm.Batches and lm.Evaluation: the target is the last row of each sequence.
func (s sequences) Fill(
	ctx context.Context, segment int64, first, count int, inputs, targets []int32,
) error {
	clear(inputs)
	for i := range targets {
		targets[i] = corpus.Padding
	}
	var number [1]int32
	for b := range count {
		at := segment*int64(s.lanes) + int64(first+b)
		if s.sampler != nil {
			at = s.sampler.Offset(segment, first+b)
		}
		if at >= s.numbers.Len() {
			continue
		}
		if err := s.numbers.ReadTokens(number[:], at); err != nil {
			return err
		}
		for t := range s.steps {
			inputs[t*count+b] = number[0]*int32(s.steps) + int32(t)
		}
		last := (s.steps-1)*count + b
		targets[last] = inputs[last]
	}
	return ctx.Err()
}
