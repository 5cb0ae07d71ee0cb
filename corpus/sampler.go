package corpus

import "fmt"

// T: tokens per segment (--bptt). G: lanes of the global batch (--batch). N: tokens of the text.

// Sampling says how an epoch is cut into segments (--sampling).
type Sampling string

const (
	// Sequential cuts the text into G rows, one per lane. Each step reads the next T tokens of
	// every row, so the state can be carried on.
	Sequential Sampling = "sequential"
	// Random cuts the text into windows of T tokens and deals them out in random order.
	Random Sampling = "random"
	// Varied is Sequential with segments of random lengths around T (--bptt-random).
	Varied Sampling = "varied"
	// Examples of corpus/examples: each lane reads a whole one. No --sampling names it.
	Examples Sampling = "examples"
)

// Limits of a global batch.
const (
	MaxLanes = 1 << 20
	MaxBPTT  = 1 << 20
)

// SamplerConfig describes the text and the batches.
type SamplerConfig struct {
	Tokens   int64 // N
	Lanes    int   // G
	BPTT     int   // T
	Seed     uint64
	Sampling Sampling
}

// Sampler says which tokens every lane reads at every step. It follows Dive into Deep Learning,
// "Language Models and the Dataset": each epoch skips a new random number of tokens in [0, T), then
// partitions the rest sequentially, or shuffles its non-overlapping windows. No token is a target
// twice in an epoch. Unlike the book's, all epochs have the same number of steps: as many as fit
// after the largest skip. So a step's epoch, and its place in the epoch, follow by division.
//
// Everything is a pure function of the config and the step; nothing is stored, however large N is.
// Steps, epochs and lanes count from 0.
type Sampler struct {
	cfg   SamplerConfig
	steps int64
}

// NewSampler returns an error if an epoch would have no step.
func NewSampler(cfg SamplerConfig) (*Sampler, error) {
	if cfg.Lanes < 1 || cfg.Lanes > MaxLanes {
		return nil, fmt.Errorf("--batch %d is not in [1, %d]", cfg.Lanes, MaxLanes)
	}
	if cfg.BPTT < 1 || cfg.BPTT > MaxBPTT {
		return nil, fmt.Errorf("--bptt %d is not in [1, %d]", cfg.BPTT, MaxBPTT)
	}
	if cfg.Sampling == Varied {
		return newVariedSampler(cfg)
	}
	if cfg.Sampling != Sequential && cfg.Sampling != Random {
		return nil, fmt.Errorf("--sampling %q is not one of sequential, random", cfg.Sampling)
	}
	// The largest skip is T-1 tokens, and the last token is a target only.
	batch := int64(cfg.Lanes) * int64(cfg.BPTT)
	steps := (cfg.Tokens - int64(cfg.BPTT)) / batch
	if cfg.Tokens < batch+int64(cfg.BPTT) {
		return nil, tooFewTokens(cfg, int64(cfg.BPTT))
	}
	return &Sampler{cfg, steps}, nil
}

// tooFewTokens is the error of a text without a batch of segments of this length.
func tooFewTokens(cfg SamplerConfig, length int64) error {
	return fmt.Errorf("the corpus has %d tokens to train on, but one global batch of --batch %d "+
		"times --bptt %d needs %d: lower --batch or --bptt, raise --max-tokens, lower "+
		"--validation-fraction, or give a longer --corpus", cfg.Tokens, cfg.Lanes, cfg.BPTT,
		int64(cfg.Lanes)*length+int64(cfg.BPTT))
}

// Config returns the sampler's config.
func (s *Sampler) Config() SamplerConfig { return s.cfg }

// SegmentsPerEpoch is floor((N-T) / (G*T)) of segments of T tokens.
func (s *Sampler) SegmentsPerEpoch() int64 { return s.steps }

// Epoch returns the epoch of a step.
func (s *Sampler) Epoch(step int64) int64 {
	if step < 0 {
		panic(fmt.Sprintf("corpus: step %d of an epoch of %d steps", step, s.steps))
	}
	return step / s.steps
}

// Reset reports whether the recurrent state must be zero before the step: at each epoch's first
// step, and in random sampling at every step.
func (s *Sampler) Reset(step int64) bool {
	return s.cfg.Sampling == Random || step%s.steps == 0
}

// Lengths returns all lengths that segments have, ascending.
func (s *Sampler) Lengths() []int { return SegmentLengths(s.cfg.BPTT, s.cfg.Sampling) }

// SegmentLengths returns all lengths of segments around T tokens, ascending.
func SegmentLengths(T int, by Sampling) []int {
	if by == Varied {
		return []int{max(1, T/2), max(1, T-lengthError), T, T + lengthError}
	}
	return []int{T}
}

// Length returns the number of tokens that each lane reads at a step.
func (s *Sampler) Length(step int64) int {
	if s.cfg.Sampling != Varied {
		return s.cfg.BPTT
	}
	length, _ := lengths(s.cfg.BPTT).of(s.cfg.Seed, s.Epoch(step), step%s.steps)
	return int(length)
}

// A purpose makes an epoch's hashes for the offset, the shuffle and the lengths independent.
const (
	purposeOffset = iota
	purposeShuffle
	purposeLengths
	purposeDocuments // of --shuffle-documents, in no epoch
)

// Offset returns the position of the first of the L+1 tokens that the lane reads at the step, L its
// Length: L inputs, and L targets one token later.
func (s *Sampler) Offset(step int64, lane int) int64 {
	epoch := s.Epoch(step)
	if lane < 0 || lane >= s.cfg.Lanes {
		panic(fmt.Sprintf("corpus: lane %d of %d", lane, s.cfg.Lanes))
	}
	t, lanes, index := int64(s.cfg.BPTT), int64(s.cfg.Lanes), step%s.steps
	skip := int64(below(Hash3(s.cfg.Seed, uint64(epoch), purposeOffset), uint64(t)))
	if s.cfg.Sampling != Random {
		row, before := (s.cfg.Tokens-skip-1)/lanes, index*t
		if s.cfg.Sampling == Varied {
			_, before = lengths(t).of(s.cfg.Seed, epoch, index)
		}
		return skip + int64(lane)*row + before
	}
	windows := NewPermutation(uint64((s.cfg.Tokens-skip-1)/t),
		Hash3(s.cfg.Seed, uint64(epoch), purposeShuffle))
	return skip + t*int64(windows.At(uint64(index*lanes+int64(lane))))
}
