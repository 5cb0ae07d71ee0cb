// Package answer is the end-to-end memory network as a train.Task: it answers a question about a
// story in several hops of attention over its sentences (Sukhbaatar, Szlam, Weston and Fergus
// 2015, arXiv:1503.08895; Goodfellow, Bengio and Courville, Deep Learning, section 10.12). Each
// lane reads a story with a question: see task/memory.
//
// Of this module it may import compute, corpus, corpus/examples, model, task/count, task/example,
// task/lines, task/memory and train.
package answer

import (
	"fmt"

	"rondo/corpus"
	"rondo/task/example"
	"rondo/task/memory"
	"rondo/train"
)

// NewPass implements memory.Network.
func (c Config) NewPass() memory.Pass[Story] { return newPass[float32](c) }

// The counts of a score.
const (
	countRight = iota // answers
	counters
)

// Counters implements memory.Network.
func (Config) Counters() int { return counters }

// Metrics implements memory.Network.
func (Config) Metrics(s train.Score) []train.Metric {
	return []train.Metric{
		{Name: "accuracy", Value: float64(s.Counts[countRight]) / float64(s.Targets)}}
}

// Story is what a question is asked about, in ids of words.
type Story struct {
	Sentences [][]int32
	Question  []int32
	Answer    int32
	Draw      uint64  // the key of its draws in training; 0: it is not trained on
	memory    []int32 // of all
}

// Stories are examples of kind Stories. They implement memory.Source.
type Stories struct {
	example.Data
	Stop int32   // ends each sentence: see examples.Stop
	Seed *uint64 // of the draws; nil: there are none, the examples are not trained on
}

// drawStream is the random stream of draws.
const drawStream = 0x64726177 // "draw"

// SegmentsPerEpoch implements memory.Source.
func (s *Stories) SegmentsPerEpoch() int64 { return s.Batches.SegmentsPerEpoch() }

// Targets implements memory.Source.
func (s *Stories) Targets(segment int64, lanes train.Lanes) int64 {
	return s.Batches.Targets(segment, lanes.First, lanes.Count)
}

// Tokens implements memory.Source.
func (s *Stories) Tokens(segment int64, lanes train.Lanes) int64 {
	return s.Batches.Tokens(segment, lanes.First, lanes.Count)
}

// Fill implements memory.Source.
func (s *Stories) Fill(segment int64, lane int, into *Story) (ids []int32, ok bool, err error) {
	number := s.Batches.Example(segment, lane)
	if number < 0 {
		return nil, false, nil
	}
	n := s.Set.Length(number)
	if cap(into.memory) < n+1 {
		into.memory = make([]int32, n+1)
	}
	into.memory = into.memory[:n+1]
	if err := s.Set.Read(number, into.memory[:n], into.memory[n:]); err != nil {
		return nil, false, fmt.Errorf("example %d: %w", number, err)
	}
	into.Answer = into.memory[n]
	into.Draw = 0
	if s.Seed != nil {
		into.Draw = max(1, corpus.Hash3(corpus.Hash3(*s.Seed, drawStream, 0), uint64(segment),
			uint64(lane)))
	}
	into.cut(into.memory[:n], s.Stop)
	return into.memory, true, nil
}

// cut divides tokens into sentences, of which the last is the question.
func (s *Story) cut(tokens []int32, stop int32) {
	s.Sentences = s.Sentences[:0]
	from := 0
	for i, token := range tokens {
		if token == stop {
			s.Sentences = append(s.Sentences, tokens[from:i])
			from = i + 1
		}
	}
	last := len(s.Sentences) - 1
	s.Question, s.Sentences = s.Sentences[last], s.Sentences[:last]
}
