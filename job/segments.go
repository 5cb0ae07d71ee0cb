package job

import (
	"fmt"

	"rondo/corpus"
	"rondo/internal/app"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/lm"
)

// segmentData is the part of a Data whose lanes read segments of --bptt tokens. The tokens of a
// time series are the numbers of its rows.
type segmentData struct {
	spec       *rondov1.JobSpec
	training   corpus.Tokens
	validation corpus.Tokens // nil if there is nothing to evaluate on
	identity   string        // of the data to evaluate on
	sampler    *corpus.Sampler
}

// divide divides the tokens of --corpus into those to train on and those to evaluate on, unless
// there are others to evaluate on. whole and part name the data and their tokens in errors.
func (s *segmentData) divide(all, others corpus.Tokens, whole, part string) (err error) {
	s.training, s.validation = all, others
	if s.spec.ValidationFraction > 0 {
		s.training, s.validation, err = corpus.Split(all, s.spec.ValidationFraction)
		if err != nil {
			return app.Usage(err)
		}
	}
	if s.validation != nil && s.validation.Len() < 2 {
		return app.Usagef("the %s to evaluate on has %d %s and needs 2: raise "+
			"--validation-fraction, or give a longer --eval-corpus", whole, s.validation.Len(),
			part)
	}
	s.sampler, err = corpus.NewSampler(corpus.SamplerConfig{Tokens: s.training.Len(),
		Lanes: int(s.spec.Batch), BPTT: int(s.spec.Bptt), Seed: s.spec.Seed,
		Sampling: sampling(s.spec)})
	if err != nil {
		if part != "tokens" {
			err = fmt.Errorf("its tokens are its %s: %w", part, err)
		}
		return app.Usage(fmt.Errorf("corpus %s: %w", s.spec.Corpus, err))
	}
	return nil
}

// sampling is how a job's text is cut into segments.
func sampling(spec *rondov1.JobSpec) corpus.Sampling {
	if spec.BpttRandom {
		return corpus.Varied
	}
	return corpus.Sampling(spec.Sampling)
}

// rateScale multiplies the learning rate by the mean length of a step's segments, divided by
// --bptt; nil: all segments have that length.
func rateScale(spec *rondov1.JobSpec, d Data) (func(step int64) float64, error) {
	if !spec.BpttRandom {
		return nil, nil
	}
	sampler, err := corpus.NewSampler(d.Batches())
	if err != nil {
		return nil, app.Usage(err)
	}
	each := max(1, spec.Accumulate)
	return func(step int64) float64 {
		tokens := 0
		for segment := step * each; segment < (step+1)*each; segment++ {
			tokens += sampler.Length(segment)
		}
		return float64(tokens) / float64(each*spec.Bptt)
	}, nil
}

// config configures task/lm.
func (s *segmentData) config(ledger Ledger) (c lm.Config, err error) {
	c = lm.Config{BPTT: int(s.spec.Bptt), EvalData: s.EvalData(), Ledger: ledger,
		Batches: batches{corpus.NewReader(s.training, s.sampler), s.sampler}}
	if s.validation != nil {
		c.Evaluation, err = corpus.NewEvaluation(s.validation, int(s.spec.Batch),
			int(s.spec.Bptt))
	}
	return c, app.Usage(err)
}

// batches is the job's segments, in the form that task/lm reads.
type batches struct {
	*corpus.Reader
	*corpus.Sampler
}

// SegmentsPerEpoch implements Data.
func (s *segmentData) SegmentsPerEpoch() int64 { return s.sampler.SegmentsPerEpoch() }

// Sizes implements Data.
func (s *segmentData) Sizes() (training, evaluation int64) {
	if s.validation != nil {
		evaluation = s.validation.Len()
	}
	return s.training.Len(), evaluation
}

// EvalData implements Data.
func (s *segmentData) EvalData() int64 {
	if s.validation == nil {
		return 0
	}
	return dataHash(s.identity)
}

// Batches implements Data.
func (s *segmentData) Batches() corpus.SamplerConfig { return s.sampler.Config() }

// Offset implements Data: the position of the first token that the lane reads.
func (s *segmentData) Offset(segment int64, lane int) int64 {
	return s.sampler.Offset(segment, lane)
}
