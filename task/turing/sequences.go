package turing

import "rondo/train"

// The streams of ParseProblem.
const (
	Training = iota
	Evaluation
)

// perEpoch is the segments of an epoch. No sequence comes twice.
const perEpoch = 1000

// evaluated is the number of sequences of an evaluation.
const evaluated = 512

// Sequences are those of a problem, dealt to lanes. They implement memory.Source.
type Sequences struct {
	Problem  Problem
	lanes    int
	segments int64 // of an epoch
	count    int64 // of all; negative: without end
}

// NewTraining deals other sequences in each segment.
func NewTraining(p Problem, lanes int) *Sequences {
	return &Sequences{p, lanes, perEpoch, -1}
}

// NewEvaluation deals the first 512 sequences once.
func NewEvaluation(p Problem, lanes int) *Sequences {
	return &Sequences{p, lanes, int64((evaluated + lanes - 1) / lanes), evaluated}
}

// SegmentsPerEpoch implements memory.Source.
func (s *Sequences) SegmentsPerEpoch() int64 { return s.segments }

// number is that of a lane's sequence.
func (s *Sequences) number(segment int64, lane int) (n int64, ok bool) {
	n = segment*int64(s.lanes) + int64(lane)
	return n, s.count < 0 || n < s.count
}

// sum adds up a function of the lanes' sequences.
func (s *Sequences) sum(
	segment int64, lanes train.Lanes, of func(steps, first int) int,
) (sum int64) {
	for lane := lanes.First; lane < lanes.End(); lane++ {
		if n, ok := s.number(segment, lane); ok {
			sum += int64(of(s.Problem.Size(n)))
		}
	}
	return sum
}

// Targets implements memory.Source: the bits that are predicted.
func (s *Sequences) Targets(segment int64, lanes train.Lanes) int64 {
	return s.sum(segment, lanes, func(steps, first int) int {
		return (steps - first) * s.Problem.outputs
	})
}

// Tokens implements memory.Source: the steps.
func (s *Sequences) Tokens(segment int64, lanes train.Lanes) int64 {
	return s.sum(segment, lanes, func(steps, _ int) int { return steps })
}

// Steps is the expected number of steps in an epoch.
func (s *Sequences) Steps() int64 {
	return int64(s.Problem.meanSteps() * float64(s.segments) * float64(s.lanes))
}

// Fill implements memory.Source.
func (s *Sequences) Fill(segment int64, lane int, e *Example) (ids []int32, ok bool, err error) {
	n, ok := s.number(segment, lane)
	if !ok {
		return nil, false, nil
	}
	s.Problem.Fill(n, e)
	for _, x := range e.Inputs { // the ledger's CRC sees every bit
		ids = append(ids, int32(x*mostRepeated))
	}
	return ids, true, nil
}
