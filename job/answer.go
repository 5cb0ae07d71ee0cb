package job

import (
	"context"
	"errors"
	"io"

	"rondo/compute"
	"rondo/corpus"
	"rondo/corpus/examples"
	"rondo/internal/app"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/task/answer"
	"rondo/task/example"
	"rondo/task/memory"
	"rondo/telemetry"
)

// storyData is the Data of the task answer.
type storyData struct{ *exampleData }

func openStories(ctx context.Context, spec *rondov1.JobSpec) (Data, error) {
	d, err := openExampleData(ctx, spec, 0)
	return storyData{d}, err
}

// answerConfig is the network of a job of the task answer.
func answerConfig(spec *rondov1.JobSpec, data Extent) (c answer.Config, err error) {
	c = answer.Config{Words: data.Tokens, Answers: data.Outputs, Hidden: int(spec.Hidden),
		Hops: int(spec.Hops), Rows: int(spec.MemoryRows), LayerWise: spec.Tying == "layer-wise",
		Position: spec.PositionEncoding, Temporal: spec.TemporalEncoding,
		Draws: int(spec.HardAttention), Seed: spec.Seed}
	if c.Answers < 1 {
		return c, app.Usagef("--outputs %d: a network has at least one answer", c.Answers)
	}
	return c, nil
}

// answerNetwork is what a job of the task answer trains.
func answerNetwork(spec *rondov1.JobSpec, data Extent) (Network, error) {
	c, err := answerConfig(spec, data)
	if err != nil {
		return Network{}, err
	}
	n := memoryNetwork[answer.Story](c, c.Workspace())
	n.Tokens, n.data = c.Words, exampleBytes*data.Rows
	return n, nil
}

// memoryNetwork is what a job of a network with an explicit memory trains. A lane's pass has a
// workspace of so many floats.
func memoryNetwork[E any](n memory.Network[E], workspace int) Network {
	tensors := n.Layout()
	return Network{Tensors: tensors,
		make: func(on compute.Device) (weights, error) { return memory.NewModel(n, on) },
		size: func(on compute.Sizer, lanes int) (work, evaluation compute.Size) {
			return memory.Size(on, tensors, lanes, workspace), evaluation
		}}
}

// newMemoryTask makes the task of a network with an explicit memory.
func newMemoryTask[E any](
	n memory.Network[E], device compute.Device, c memory.Config[E],
) (*Task, error) {
	m, err := memory.NewModel(n, device)
	if err != nil {
		return nil, err
	}
	t, err := memory.NewTask(m, c)
	if err != nil {
		m.Close()
		return nil, err
	}
	return &Task{Task: t, close: func() {
		t.Close()
		m.Close()
	}}, nil
}

// storiesOf are examples as the network reads them.
func storiesOf(data example.Data, words *corpus.Vocabulary) *answer.Stories {
	return &answer.Stories{Data: data, Stop: words.ID(examples.Stop)}
}

// NewTask implements Data.
func (d storyData) NewTask(device compute.Device, tail int, ledger Ledger) (*Task, error) {
	c, err := answerConfig(d.spec, d.Extent())
	if err != nil {
		return nil, err
	}
	training := storiesOf(d.training, d.Vocabulary())
	if c.Draws > 0 {
		training.Seed = &c.Seed
	}
	reads := memory.Config[answer.Story]{Training: training, EvalData: d.EvalData(),
		Ledger: ledger, Tail: tail}
	if d.evaluation != nil {
		reads.Evaluation = storiesOf(*d.evaluation, d.Vocabulary())
	}
	return newMemoryTask(c, device, reads)
}

// scoredTogether is the number of examples that an evaluation computes together.
const scoredTogether = 64

// evaluateAnswers measures a network of the task answer on a file of stories.
func evaluateAnswers(
	ctx context.Context, t *Trained, source string, _ Search,
) (e telemetry.Eval, err error) {
	set, err := OpenExamples(ctx, t.Spec, source, t.Vocabulary, t.Outputs, 0)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	batches, err := examples.NewEvaluation(set, scoredTogether)
	if err != nil {
		return e, err
	}
	stories := storiesOf(example.Data{Set: set, Batches: batches}, t.Vocabulary)
	return scoreMemory(ctx, t, stories, scoredTogether)
}

// scoreMemory measures a network with an explicit memory.
func scoreMemory[E any](
	ctx context.Context, t *Trained, from memory.Source[E], lanes int,
) (e telemetry.Eval, err error) {
	m := t.weights.(*memory.Model[E])
	s, err := memory.Score(ctx, m, from, lanes)
	if err != nil {
		return e, err
	}
	return t.scored(s.Loss, s.Targets, m.Metrics(s)...), nil
}

// Answer answers the questions among the lines of standard input, with a network of answer.
func (t *Trained) Answer(
	ctx context.Context, in io.Reader, each func(answer.Answer) error,
) error {
	m := t.weights.(*memory.Model[answer.Story])
	r := answer.NewReader(m, t.Outputs, t.encode, int(t.Spec.MaxLength))
	return t.input(r.Lines(ctx, in, each))
}
