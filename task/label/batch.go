package label

import (
	"context"
	"fmt"
	"iter"

	"rondo/corpus"
	"rondo/model"
	"rondo/task/ahead"
	"rondo/task/example"
	"rondo/train"
)

// batch is what a span reads.
type batch struct {
	in              model.Examples
	inputs, targets []int32 // memory of in, for the longest segment
}

// read reads spans of so many lanes ahead.
func read(
	ctx context.Context, d Data, spans iter.Seq[train.Span], ledger ahead.Ledger, lanes int,
) *ahead.Reader[batch] {
	n := d.Longest() * lanes
	newBatch := func() *batch {
		return &batch{in: model.Examples{Lengths: make([]int32, lanes)},
			inputs: make([]int32, n), targets: make([]int32, n)}
	}
	return ahead.Read(ctx, spans, ledger, newBatch,
		func(ctx context.Context, at train.Span, b *batch) ([]int32, error) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			b.in.Inputs, b.in.Targets = b.inputs, b.targets
			return d.Fill(ctx, at, &b.in)
		})
}

// Begin cuts the memory of a batch to these steps of inputs and rows of targets, which it empties.
func Begin(in *model.Examples, steps, rows int) {
	lanes := len(in.Lengths)
	in.Steps, in.Inputs, in.Targets = steps, in.Inputs[:steps*lanes], in.Targets[:rows*lanes]
	clear(in.Inputs)
	clear(in.Lengths)
	for i := range in.Targets {
		in.Targets[i] = corpus.Padding
	}
}

// Examples are labelled examples as Data: each lane reads a whole one.
type Examples struct {
	example.Data
	Pool model.Pool
}

// Longest implements Data.
func (e *Examples) Longest() int { return e.Set.Longest() }

// SegmentsPerEpoch implements Data.
func (e *Examples) SegmentsPerEpoch() int64 { return e.Batches.SegmentsPerEpoch() }

// Targets implements Data.
func (e *Examples) Targets(segment int64, lanes train.Lanes) int64 {
	return e.Batches.Targets(segment, lanes.First, lanes.Count)
}

// Tokens implements Data.
func (e *Examples) Tokens(segment int64, lanes train.Lanes) int64 {
	return e.Batches.Tokens(segment, lanes.First, lanes.Count)
}

// Fill implements Data. It pads to the longest example of all lanes.
func (e *Examples) Fill(
	_ context.Context, at train.Span, in *model.Examples,
) (read []int32, err error) {
	steps, lanes := e.Batches.Steps(at.Segment), at.Lanes.Count
	Begin(in, steps, model.LabellerConfig{Pool: e.Pool}.Rows(steps))
	memory := make([]int32, 2*steps)
	for lane := range lanes {
		number := e.Batches.Example(at.Segment, at.Lanes.First+lane)
		if number < 0 {
			continue
		}
		length := e.Set.Length(number)
		in.Lengths[lane] = int32(length)
		tokens, labels := memory[:length], memory[steps:][:e.Set.Targets(number)]
		if err := e.Set.Read(number, tokens, labels); err != nil {
			return nil, fmt.Errorf("example %d: %w", number, err)
		}
		for i, id := range tokens {
			in.Inputs[i*lanes+lane] = id
		}
		for i, label := range labels {
			in.Targets[i*lanes+lane] = label
		}
	}
	return in.Inputs, nil
}
