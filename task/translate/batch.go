package translate

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

// batch is the pairs of a span.
type batch struct {
	in             model.Pairs
	source         []int32 // memory of in.Source, for the longest source
	inputs, labels []int32 // of in.Inputs and in.Targets, for the longest target
	from, to       []int32 // a pair; reused
	pairs          []pair  // of each lane
}

// pair is a source and its translation, without ends, and the example's number; no source: the lane
// has no example.
type pair struct {
	source, target []int32
	number         int64
}

// read reads the pairs of spans of so many lanes ahead.
func (t *Task) read(
	ctx context.Context, d *example.Data, spans iter.Seq[train.Span], ledger ahead.Ledger,
	lanes int,
) *ahead.Reader[batch] {
	newBatch := func() *batch {
		return &batch{in: model.Pairs{SourceLengths: make([]int32, lanes)},
			source: make([]int32, t.source*lanes), inputs: make([]int32, t.target*lanes),
			labels: make([]int32, t.target*lanes), from: make([]int32, t.source*lanes),
			to: make([]int32, t.target*lanes), pairs: make([]pair, lanes)}
	}
	return ahead.Read(ctx, spans, ledger, newBatch,
		func(ctx context.Context, at train.Span, b *batch) ([]int32, error) {
			err := t.fill(ctx, d, at, b)
			return b.in.Source, err
		})
}

// fill reads the span's pairs, padded to the longest of all lanes, so that the padding does not
// depend on how lanes are dealt.
func (t *Task) fill(ctx context.Context, d *example.Data, at train.Span, b *batch) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	lanes := at.Lanes.Count
	in := &b.in
	in.SourceSteps, in.TargetSteps = t.marks.steps(d.Batches.Steps(at.Segment)),
		d.Batches.TargetSteps(at.Segment)+1
	in.Source = b.source[:in.SourceSteps*lanes]
	in.Inputs, in.Targets = b.inputs[:in.TargetSteps*lanes], b.labels[:in.TargetSteps*lanes]
	clear(in.Source)
	clear(in.Inputs)
	for i := range in.Targets {
		in.Targets[i] = corpus.Padding
	}
	for lane := range lanes {
		number := d.Batches.Example(at.Segment, at.Lanes.First+lane)
		in.SourceLengths[lane], b.pairs[lane] = 0, pair{}
		if number < 0 {
			continue
		}
		p := pair{b.from[lane*t.source:][:d.Set.Length(number)],
			b.to[lane*t.target:][:d.Set.Targets(number)], number}
		if err := d.Set.Read(number, p.source, p.target); err != nil {
			return fmt.Errorf("example %d: %w", number, err)
		}
		b.pairs[lane] = p
		in.SourceLengths[lane] = int32(t.marks.steps(len(p.source)))
		t.marks.writeSource(in.Source, p.source, lane, lanes)
		in.Inputs[lane] = t.marks.begin
		for i, id := range p.target {
			in.Inputs[(i+1)*lanes+lane], in.Targets[i*lanes+lane] = id, id
		}
		in.Targets[len(p.target)*lanes+lane] = t.marks.end
	}
	return nil
}

// writeSource writes a source and its end, if it has one, to column lane of dst: [steps, lanes].
func (m marks) writeSource(dst, source []int32, lane, lanes int) {
	for i, id := range source {
		dst[i*lanes+lane] = id
	}
	if m.sourceEnd != 0 {
		dst[len(source)*lanes+lane] = m.sourceEnd
	}
}
