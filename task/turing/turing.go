// Package turing is the neural Turing machine as a train.Task: a recurrent network that reads and
// writes a memory by content and by location (Graves, Wayne and Danihelka 2014, arXiv:1410.5401;
// Goodfellow, Bengio and Courville, Deep Learning, section 10.12), on sequences that are generated:
// see task/memory.
//
// Of this module it may import compute, corpus, model, task/count, task/memory and train.
package turing

import (
	"math"

	"rondo/task/memory"
	"rondo/train"
)

// NewPass implements memory.Network.
func (c Config) NewPass() memory.Pass[Example] { return newPass[float32](c) }

// The counts of a score.
const (
	countWrong     = iota // bits
	countRight            // sequences without a wrong bit
	countSequences        // all
	counters
)

// Counters implements memory.Network.
func (Config) Counters() int { return counters }

// Metrics implements memory.Network: the loss in bits per bit, and the shares of wrong bits and of
// sequences without any.
func (Config) Metrics(s train.Score) []train.Metric {
	return []train.Metric{
		{Name: "bits_per_bit", Value: s.Loss / math.Ln2 / float64(s.Targets)},
		{Name: "wrong_bits", Value: float64(s.Counts[countWrong]) / float64(s.Targets)},
		{Name: "right_sequences", Value: float64(s.Counts[countRight]) /
			float64(s.Counts[countSequences])},
	}
}
