// Package tree is the recursive network (Goodfellow, Bengio and Courville, Deep Learning, section
// 10.6; model.Tree) as a train.Task: it predicts a label for each node of a tree that has one. Each
// lane reads a tree in a segment, and carries no state.
//
// Of this module it may import compute, corpus, corpus/examples, model, task/ahead, task/example,
// task/label, task/lines and train.
package tree

import (
	"context"
	"fmt"
	"iter"

	"rondo/compute"
	"rondo/corpus/examples"
	"rondo/model"
	"rondo/task/ahead"
	"rondo/task/example"
	"rondo/train"
)

// Data are trees, dealt to lanes.
type Data struct {
	example.Data
	// Balanced makes a balanced tree over each text of examples.Labelled. Without it the examples
	// are examples.Trees.
	Balanced bool
}

// Nodes is the number of nodes of the largest tree whose example has so many tokens.
func Nodes(balanced bool, tokens int) int {
	if balanced {
		return 2*tokens - 1
	}
	return tokens
}

// most is the number of nodes of the largest tree.
func (d *Data) most() int { return Nodes(d.Balanced, d.Set.Longest()) }

// Config is the data of the task.
type Config struct {
	Training   Data
	Evaluation *Data        // nil: no evaluation
	EvalData   int64        // see train.Task
	Ledger     ahead.Ledger // nil: none
}

// Task is a network and its trees. It implements train.Task.
type Task struct {
	*model.Tree
	example.Base
	training   Data
	evaluation *Data
	most       int // nodes of a tree
}

// New makes a task. The caller keeps the network and closes it.
func New(network *model.Tree, c Config) *Task {
	t := &Task{Tree: network, training: c.Training, evaluation: c.Evaluation,
		most: c.Training.most(), Base: example.Base{Training: c.Training.Data, EvalID: c.EvalData,
			Ledger: c.Ledger}}
	if c.Evaluation != nil {
		t.Base.Evaluation, t.most = &c.Evaluation.Data, max(t.most, c.Evaluation.most())
	}
	return t
}

// Gradients implements train.Task.
func (t *Task) Gradients() []float32 { return t.GradientsWithTail() }

// The counts of a score.
const (
	countRight      = iota // nodes
	countRoots             // trees
	countRightRoots        // of them
	counters
)

// Counters implements train.Task.
func (*Task) Counters() int { return counters }

// Metrics implements train.Task.
func (*Task) Metrics(s train.Score) []train.Metric { return Metrics(s) }

// Metrics are the shares of nodes and of roots with the right label.
func Metrics(s train.Score) []train.Metric {
	return []train.Metric{
		{Name: "accuracy", Value: float64(s.Counts[countRight]) / float64(s.Targets)},
		{Name: "root_accuracy", Value: float64(s.Counts[countRightRoots]) /
			float64(s.Counts[countRoots])},
	}
}

// Open implements train.Task.
func (t *Task) Open(lanes int) (train.Seat, error) {
	pass, err := t.NewPass(lanes * t.most)
	if err != nil {
		return nil, err
	}
	return &seat{TreePass: pass, task: t}, nil
}

// batch is the trees of a span.
type batch struct {
	in     model.Trees
	ids    []int32 // tokens of the examples, for the ledger
	labels []int32 // targets of an example
	right  []int32 // targets of all nodes that have one
	roots  []int   // the roots' places in right
}

// fill reads the trees of a span.
func (b *batch) fill(ctx context.Context, d *Data, at train.Span) error {
	b.clear()
	for lane := at.Lanes.First; lane < at.Lanes.End(); lane++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		number := d.Batches.Example(at.Segment, lane)
		if number < 0 {
			continue
		}
		before := len(b.ids)
		b.ids = append(b.ids, make([]int32, d.Set.Length(number))...)
		b.labels = append(b.labels[:0], make([]int32, d.Set.Targets(number))...)
		if err := d.Set.Read(number, b.ids[before:], b.labels); err != nil {
			return fmt.Errorf("example %d: %w", number, err)
		}
		if d.Balanced {
			b.balance(b.ids[before:], b.labels[0])
		} else if err := b.read(b.ids[before:], b.labels, d.Set.Vocabulary().Len()); err != nil {
			return fmt.Errorf("example %d: %w", number, err)
		}
		b.roots = append(b.roots, len(b.right)-1)
	}
	return nil
}

func (b *batch) clear() {
	b.in.Children, b.in.Words, b.in.Targets = b.in.Children[:0], b.in.Words[:0], b.in.Targets[:0]
	b.ids, b.right, b.roots = b.ids[:0], b.right[:0], b.roots[:0]
}

// read adds a tree. The last label is the root's.
func (b *batch) read(ids, labels []int32, words int) error {
	for _, id := range ids {
		word, children, labelled := examples.NodeOf(id, words)
		target := int32(-1)
		if labelled && len(labels) > 0 {
			target, labels = labels[0], labels[1:]
			b.right = append(b.right, target)
		}
		b.in.Children = append(b.in.Children, children)
		b.in.Words, b.in.Targets = append(b.in.Words, word), append(b.in.Targets, target)
	}
	if len(labels) > 0 || b.in.Targets[len(b.in.Targets)-1] < 0 {
		return fmt.Errorf("%d labels have no node, or the root has no label", len(labels))
	}
	return nil
}

// balance adds a balanced tree over words, whose root has a label.
func (b *batch) balance(words []int32, label int32) {
	from := len(b.in.Children)
	b.in.Children = examples.Balanced(b.in.Children, len(words))
	for _, children := range b.in.Children[from:] {
		word := int32(0)
		if children == 0 {
			word, words = words[0], words[1:]
		}
		b.in.Words, b.in.Targets = append(b.in.Words, word), append(b.in.Targets, -1)
	}
	b.in.Targets[len(b.in.Targets)-1] = label
	b.right = append(b.right, label)
}

// score scores a batch.
func (b *batch) score(pass *model.TreePass, counts []int64) (s train.Score, err error) {
	clear(counts)
	s = train.Score{Targets: int64(len(b.right)), Counts: counts}
	if s.Loss, err = pass.Score(b.in); err != nil {
		return s, err
	}
	predicted, _ := pass.Predicted()
	for i, label := range b.right {
		if predicted[i] == label {
			counts[countRight]++
		}
	}
	for _, root := range b.roots {
		counts[countRoots]++
		if predicted[root] == b.right[root] {
			counts[countRightRoots]++
		}
	}
	return s, nil
}

// seat is a model.TreePass with its trees. It implements train.Seat.
type seat struct {
	*model.TreePass
	example.Seat[batch]
	task *Task
}

// Staged implements train.Seat.
func (*seat) Staged() []compute.Staged { return nil }

// Read implements train.Seat.
func (s *seat) Read(ctx context.Context, spans iter.Seq[train.Span]) (stop func()) {
	s.Reader = ahead.Read(ctx, spans, s.task.Ledger, func() *batch { return &batch{} },
		func(ctx context.Context, at train.Span, b *batch) ([]int32, error) {
			err := b.fill(ctx, &s.task.training, at)
			return b.ids, err
		})
	return s.Reader.Close
}

// Backward implements train.Seat.
func (s *seat) Backward(p train.Pass) (lossSum float64, err error) {
	return s.TreePass.Backward(s.Batch.in, p.Scale, model.Hooks(p.Hooks))
}

// Evaluate implements train.Seat.
func (s *seat) Evaluate(ctx context.Context, lanes train.Lanes, add func(train.Score)) error {
	return score(ctx, s.TreePass, s.task.evaluation, lanes, add)
}

// score scores the trees of these lanes in an epoch.
func score(
	ctx context.Context, pass *model.TreePass, d *Data, lanes train.Lanes, add func(train.Score),
) error {
	var b batch
	counts := make([]int64, counters)
	for at := range train.Spans(d.Batches.SegmentsPerEpoch(), lanes) {
		if err := b.fill(ctx, d, at); err != nil {
			return err
		}
		s, err := b.score(pass, counts)
		if err != nil {
			return err
		}
		add(s)
	}
	return nil
}

// scoredTogether is the number of trees that Score computes together.
const scoredTogether = 64

// Score scores all trees of a set.
func Score(
	ctx context.Context, network *model.Tree, set *examples.Set, balanced bool,
) (all train.Score, err error) {
	lanes := int(min(set.Len(), scoredTogether))
	d := Data{Data: example.Data{Set: set}, Balanced: balanced}
	if d.Batches, err = examples.NewEvaluation(set, lanes); err != nil {
		return all, err
	}
	pass, err := network.NewPass(lanes * d.most())
	if err != nil {
		return all, err
	}
	defer pass.Close()
	all.Counts = make([]int64, counters)
	err = score(ctx, pass, &d, train.Lanes{Count: lanes}, func(s train.Score) {
		all.Loss, all.Targets = all.Loss+s.Loss, all.Targets+s.Targets
		for i, n := range s.Counts {
			all.Counts[i] += n
		}
	})
	return all, err
}
