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

// batch is the examples of a span.
type batch struct {
	in      model.Examples
	inputs  []int32 // memory of in.Inputs, for the longest example
	targets []int32 // of in.Targets, likewise
	tokens  []int32 // an example; reused
	labels  []int32
}

// read reads the examples of spans of so many lanes ahead, for this pool.
func read(
	ctx context.Context, d *example.Data, spans iter.Seq[train.Span], ledger ahead.Ledger,
	lanes int, pool model.Pool,
) *ahead.Reader[batch] {
	steps := d.Set.Longest()
	newBatch := func() *batch {
		return &batch{in: model.Examples{Lengths: make([]int32, lanes)},
			inputs: make([]int32, steps*lanes), targets: make([]int32, steps*lanes),
			tokens: make([]int32, steps), labels: make([]int32, steps)}
	}
	return ahead.Read(ctx, spans, ledger, newBatch,
		func(ctx context.Context, at train.Span, b *batch) ([]int32, error) {
			err := fill(ctx, d, at, pool, b)
			return b.in.Inputs, err
		})
}

// fill reads the span's examples, padded to the longest one of all lanes, so that the padding does
// not depend on how lanes are dealt.
func fill(
	ctx context.Context, d *example.Data, at train.Span, pool model.Pool, b *batch,
) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	steps, lanes := d.Batches.Steps(at.Segment), at.Lanes.Count
	rows := steps
	if pool != model.PoolNone {
		rows = 1
	}
	b.in.Steps, b.in.Inputs, b.in.Targets = steps, b.inputs[:steps*lanes], b.targets[:rows*lanes]
	clear(b.in.Inputs)
	for i := range b.in.Targets {
		b.in.Targets[i] = corpus.Padding
	}
	for lane := range lanes {
		number := d.Batches.Example(at.Segment, at.Lanes.First+lane)
		b.in.Lengths[lane] = 0
		if number < 0 {
			continue
		}
		length, targets := d.Set.Length(number), d.Set.Targets(number)
		b.in.Lengths[lane] = int32(length)
		tokens, labels := b.tokens[:length], b.labels[:targets]
		if err := d.Set.Read(number, tokens, labels); err != nil {
			return fmt.Errorf("example %d: %w", number, err)
		}
		for i, id := range tokens {
			b.in.Inputs[i*lanes+lane] = id
		}
		for i, label := range labels {
			b.in.Targets[i*lanes+lane] = label
		}
	}
	return nil
}
