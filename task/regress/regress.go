// Package regress predicts time series as a train.Task. Each lane reads a part of the series, T
// rows per segment, and predicts the next row's target columns after each. The loss is the mean
// squared error of standardised columns: see Goodfellow, Bengio and Courville, Deep Learning, 10.2,
// and Dive into Deep Learning, "Working with Sequences".
//
// It trains as task/lm does, with numbers of rows for tokens. Of this module it may import
// corpus/series, model, task/lm and train.
package regress

import (
	"context"
	"fmt"
	"math"

	"rondo/corpus/series"
	"rondo/model"
	"rondo/task/lm"
	"rondo/train"
)

// Config is a task's data. Row numbers count the rows of All in turn.
type Config struct {
	lm.Config
	All     []*series.Series // the series of --corpus, and the one to evaluate on if it is another
	Targets []int            // columns to predict
	Scale   series.Scale     // of the training part
	// Sequences: each segment is a sequence with one target, the target columns of its last row,
	// which the network does not read. It begins at a zero state.
	Sequences bool
}

// Task is a network and its series. It implements train.Task.
type Task struct {
	*lm.Task
	Units
	evaluation lm.Evaluation
	targets    []float32 // [rows, C]: standardised
	sequences  bool
}

// Units turn squared errors of standardised columns into the data's units.
type Units struct {
	variances []float64 // of the target columns
	mean      float64   // of the variances
}

// NewUnits are those of these columns.
func NewUnits(scale series.Scale, columns []int) (u Units) {
	for _, column := range columns {
		v := scale.Std[column] * scale.Std[column]
		u.variances = append(u.variances, v)
		u.mean += v / float64(len(columns))
	}
	return u
}

// Metrics implements train.Task: mse, the mean squared error in the data's units.
func (u Units) Metrics(s train.Score) []train.Metric {
	mse := float64(s.Counts[0]) / fraction * u.mean / float64(s.Targets)
	if math.IsNaN(s.Loss) {
		mse = math.NaN()
	}
	return []train.Metric{{Name: "mse", Value: mse}}
}

// Tally returns the sum of no errors.
func (u Units) Tally() *Tally { return &Tally{units: u} }

// Tally adds up errors.
type Tally struct {
	units   Units
	score   train.Score
	counted float64 // see Task.Counters
}

// Add adds the errors of a row's predictions, [C].
func (t *Tally) Add(predicted, truth []float32) {
	t.score.Targets++
	C := float64(len(t.units.variances))
	for c, variance := range t.units.variances {
		e := float64(predicted[c]) - float64(truth[c])
		t.score.Loss += e * e / C
		t.counted += e * e / C * variance / t.units.mean
	}
}

// Score is the score of all rows.
func (t *Tally) Score() train.Score {
	s := t.score
	s.Counts = []int64{0}
	if counted := t.counted * fraction; counted < mostCounted {
		s.Counts[0] = int64(math.Round(counted))
	} else { // it diverges
		s.Loss = math.NaN()
	}
	return s
}

// New makes a task. The caller keeps the model and closes it.
func New(m *model.Model, cfg Config) (*Task, error) {
	t := &Task{evaluation: cfg.Evaluation, sequences: cfg.Sequences}
	read := columns(cfg.All[0], cfg.Targets, cfg.Sequences)
	var inputs []float32
	for _, s := range cfg.All {
		inputs = cfg.Scale.Standard(inputs, s, read)
		t.targets = cfg.Scale.Standard(t.targets, s, cfg.Targets)
	}
	if err := m.SetSeries(inputs, t.targets); err != nil {
		return nil, fmt.Errorf("the series of %d numbers: %w", len(inputs), err)
	}
	t.Units = NewUnits(cfg.Scale, cfg.Targets)
	var err error
	t.Task, err = lm.New(m, cfg.Config)
	return t, err
}

// Targets implements train.Task: rows that are predicted.
func (t *Task) Targets(segment int64, lanes train.Lanes) int64 {
	if t.sequences {
		return int64(lanes.Count)
	}
	return t.Task.Targets(segment, lanes)
}

// fraction is the unit in which Score.Counts has squared errors, so that ranks add them exactly.
const fraction = 1 << 20

// mostCounted bounds a count, for errors that are not finite.
const mostCounted = 1 << 40

// Counters implements train.Task: the squared error in the data's units, divided by their mean
// variance.
func (t *Task) Counters() int { return 1 }

// Metrics implements train.Task.
func (t *Task) Metrics(s train.Score) []train.Metric { return t.Units.Metrics(s) }

// Open implements train.Task.
func (t *Task) Open(lanes int) (train.Seat, error) {
	s, err := t.Task.Open(lanes)
	if err != nil {
		return nil, err
	}
	return &seat{s.(*lm.Seat), t}, nil
}

type seat struct {
	*lm.Seat
	task *Task
}

// Evaluate implements train.Seat.
func (s *seat) Evaluate(ctx context.Context, lanes train.Lanes, add func(train.Score)) error {
	t, rows, next := s.task, make([]int32, s.T*s.B), make([]int32, s.T*s.B)
	predicted := make([]float32, len(rows)*len(t.variances))
	s.ZeroEvaluationState()
	for segment := range t.evaluation.Segments() {
		err := t.evaluation.Fill(ctx, segment, lanes.First, lanes.Count, rows, next)
		if err != nil {
			return err
		}
		if t.sequences {
			s.ZeroEvaluationState()
		}
		if err := s.Predict(rows, predicted); err != nil {
			return err
		}
		add(t.score(predicted, next))
	}
	return nil
}

// score compares predictions, [N, C], with the rows that were to be predicted; -1 does not count.
func (t *Task) score(predicted []float32, next []int32) train.Score {
	tally, C := t.Tally(), len(t.variances)
	for i, row := range next {
		if row >= 0 {
			tally.Add(predicted[i*C:], t.targets[int(row)*C:])
		}
	}
	return tally.Score()
}
