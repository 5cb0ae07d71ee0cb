// Package translate turns a text into another: an encoder reads the source, and a decoder predicts
// each token of the target from the encoder's states and the target's tokens before it (Sutskever,
// Vinyals and Le 2014; Cho et al. 2014; Goodfellow, Bengio and Courville, Deep Learning, 10.4; Dive
// into Deep Learning, "Sequence-to-Sequence Learning for Machine Translation"). In training these
// are the right tokens (teacher forcing), or with Sampling some of its own; Searcher takes its own.
//
// Of this module it may import compute, corpus, corpus/examples, model, task/ahead, task/example
// and train.
package translate

import (
	"fmt"

	"rondo/corpus"
	"rondo/model"
	"rondo/task/ahead"
	"rondo/task/example"
	"rondo/train"
)

// Tokens that the vocabularies have besides those of the text.
const (
	Begin = "<bos>" // the decoder's first input
	End   = "<eos>" // ends every source and target
)

// EndID is End's number in a vocabulary that reserves Begin and End.
const EndID = 2

// Config is a task's data.
type Config struct {
	Training   example.Data  // of examples.Pairs, whose vocabularies have Begin and End
	Vectors    bool          // of examples.Described: sources are rows, and have no End
	Evaluation *example.Data // nil: no evaluation
	EvalData   int64         // see train.Task
	Ledger     ahead.Ledger
	Sampling   Sampling
}

// Task is a translator and its pairs. It implements train.Task.
type Task struct {
	*model.Translator
	example.Base
	marks marks
	// source and target are the steps of the longest source and target, with their ends.
	source, target int
	sampling       Sampling
}

// marks are the ids of Begin and End. sourceEnd is 0 if sources have no end: vectors.
type marks struct{ sourceEnd, begin, end int32 }

// newMarks looks the marks up. A nil source has none.
func newMarks(source, target *corpus.Vocabulary) (m marks, err error) {
	for _, look := range []struct {
		in   *corpus.Vocabulary
		mark string
		id   *int32
	}{{source, End, &m.sourceEnd}, {target, Begin, &m.begin}, {target, End, &m.end}} {
		if look.in == nil {
			continue
		}
		if *look.id = look.in.ID(look.mark); *look.id == 0 {
			return m, fmt.Errorf("a vocabulary without %s", look.mark)
		}
	}
	return m, nil
}

// steps is how many steps a source of so many tokens takes.
func (m marks) steps(source int) int {
	if m.sourceEnd == 0 {
		return source
	}
	return source + 1
}

// New makes a task. The caller keeps the translator and closes it.
func New(m *model.Translator, c Config) (*Task, error) {
	set := c.Training.Set
	source := set.Vocabulary()
	if c.Vectors {
		source = nil
	}
	marks, err := newMarks(source, set.TargetVocabulary())
	if err != nil {
		return nil, err
	}
	t := &Task{Translator: m, Base: example.Base{Training: c.Training, Evaluation: c.Evaluation,
		EvalID: c.EvalData, Ledger: c.Ledger}, marks: marks,
		sampling: c.Sampling, source: marks.steps(set.Longest()),
		target: set.LongestTarget() + 1}
	if c.Evaluation != nil {
		t.source = max(t.source, marks.steps(c.Evaluation.Set.Longest()))
		t.target = max(t.target, c.Evaluation.Set.LongestTarget()+1)
	}
	return t, nil
}

// Gradients implements train.Task.
func (t *Task) Gradients() []float32 { return t.GradientsWithTail() }

// Targets implements train.Task: the targets' tokens and their ends.
func (t *Task) Targets(segment int64, lanes train.Lanes) int64 {
	return targets(&t.Training, segment, lanes)
}

func targets(d *example.Data, segment int64, lanes train.Lanes) int64 {
	return d.Batches.Targets(segment, lanes.First, lanes.Count) + present(d, segment, lanes)
}

// Tokens implements train.Task: those of the sources and the targets, with their ends.
func (t *Task) Tokens(segment int64, lanes train.Lanes) int64 {
	if t.marks.sourceEnd == 0 { // sources are no tokens
		return t.Targets(segment, lanes)
	}
	return t.Base.Tokens(segment, lanes) + present(&t.Training, segment, lanes) +
		t.Targets(segment, lanes)
}

// present returns how many of the lanes have an example in a segment.
func present(d *example.Data, segment int64, lanes train.Lanes) (n int64) {
	for lane := lanes.First; lane < lanes.End(); lane++ {
		if d.Batches.Example(segment, lane) >= 0 {
			n++
		}
	}
	return n
}

// Counters implements train.Task.
func (t *Task) Counters() int { return bleuCounters }

// Metrics implements train.Task: the BLEU of greedy translations.
func (t *Task) Metrics(s train.Score) []train.Metric {
	return []train.Metric{{Name: "bleu", Value: BLEU(s.Counts)}}
}
