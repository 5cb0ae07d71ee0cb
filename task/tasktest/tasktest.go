// Package tasktest has what tests of train.Tasks share: passes over a segment however its lanes are
// dealt to seats, evaluations, and gradients held to finite differences and to PyTorch's.
//
// Of this module it may import compute, compute/cpu, model and train.
package tasktest

import (
	"math"
	"slices"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
	"rondo/train"
)

// Device is a CPU with so many threads. The test closes it.
func Device(t *testing.T, threads int) compute.Device {
	t.Helper()
	device, err := cpu.New(cpu.Config{Threads: threads})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { device.Close() })
	return device
}

// Pass computes a segment. seats has the number of lanes of each seat. It returns the loss
// and the sum of the gradients, laid out as the parameters.
func Pass(
	t *testing.T, task train.Task, segment int64, scale float32, seats ...int,
) (loss float64, sum []float32) {
	t.Helper()
	sum = make([]float32, len(task.Params()))
	first := 0
	for _, n := range seats {
		s, err := task.Open(n)
		if err != nil {
			t.Fatal(err)
		}
		at := train.Span{Step: segment + 1, Segment: segment,
			Lanes: train.Lanes{First: first, Count: n}}
		first += n
		stop := s.Read(t.Context(), slices.Values([]train.Span{at}))
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		var ends []int
		part, err := s.Backward(train.Pass{Span: at, Scale: scale, Hooks: train.Hooks{
			Finished: func(end int) { ends = append(ends, end) }}})
		if err != nil || !slices.Equal(ends, task.Finishes()) {
			t.Fatalf("%v; finished %v of %v", err, ends, task.Finishes())
		}
		stop()
		s.Close()
		loss += part
		for i, g := range task.Gradients()[:len(sum)] {
			sum[i] += g
		}
	}
	return loss, sum
}

// Step is Pass followed by an update of SGD with a rate of 1. It returns the loss.
func Step(
	t *testing.T, task train.Task, segment int64, scale float32, seats ...int,
) (loss float64) {
	t.Helper()
	loss, sum := Pass(t, task, segment, scale, seats...)
	for i, g := range sum {
		task.Params()[i] -= g
	}
	return loss
}

// Evaluate adds up the scores of an evaluation by seats of these numbers of lanes.
func Evaluate(t *testing.T, task train.Task, seats ...int) (sum train.Score) {
	t.Helper()
	sum.Counts = make([]int64, task.Counters())
	first := 0
	for _, n := range seats {
		s, err := task.Open(n)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Evaluate(t.Context(), train.Lanes{First: first, Count: n}, func(s train.Score) {
			sum.Loss, sum.Targets = sum.Loss+s.Loss, sum.Targets+s.Targets
			for i, n := range s.Counts {
				sum.Counts[i] += n
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		first += n
		s.Close()
	}
	return sum
}

// Near fails the test unless two numbers agree to a part, or, if they are below 1, to as much.
func Near(t *testing.T, what string, got, want, part float64) {
	t.Helper()
	if !(math.Abs(got-want) <= part*max(1, math.Abs(want))) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
