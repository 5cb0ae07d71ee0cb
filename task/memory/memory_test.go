package memory

import (
	"errors"
	"math"
	"slices"
	"testing"

	"rondo/compute"
	"rondo/model"
	"rondo/task/count"
	"rondo/task/tasktest"
	"rondo/train"
)

// line is a network y = a x + b with half the squared error as its loss.
type line struct{}

type point struct{ x, y float32 }

func (line) Layout() []model.View {
	return count.Place(compute.Tensor{Name: "a", Shape: []int{1}},
		compute.Tensor{Name: "b", Shape: []int{1}})
}
func (line) Initialise(params []float32)        { params[0], params[model.Alignment] = 2, -1 }
func (line) NewPass() Pass[point]               { return &linePass{} }
func (line) Counters() int                      { return 1 }
func (line) Metrics(train.Score) []train.Metric { return nil }

type linePass struct{ x, d float32 }

func (p *linePass) Forward(params []float32, e *point) train.Score {
	p.x, p.d = e.x, params[0]*e.x+params[model.Alignment]-e.y
	return train.Score{Loss: float64(p.d * p.d / 2), Targets: 1, Counts: []int64{int64(e.x)}}
}

func (p *linePass) Backward(_, gradients []float32, scale float32) {
	gradients[0] += scale * p.d * p.x
	gradients[model.Alignment] += scale * p.d
}

// points are 21 examples, dealt to lanes in their order.
type points struct{ lanes int }

const numbers = 21

func (p points) SegmentsPerEpoch() int64 { return int64((numbers + p.lanes - 1) / p.lanes) }
func (p points) Targets(segment int64, lanes train.Lanes) (n int64) {
	for lane := lanes.First; lane < lanes.End(); lane++ {
		if int(segment)*p.lanes+lane < numbers {
			n++
		}
	}
	return n
}
func (p points) Tokens(segment int64, lanes train.Lanes) int64 { return p.Targets(segment, lanes) }
func (p points) Fill(segment int64, lane int, e *point) (ids []int32, ok bool, err error) {
	n := int(segment)*p.lanes + lane
	if n >= numbers {
		return nil, false, nil
	}
	if n == numbers-1 && lane == 0 {
		return nil, false, errors.New("unreadable")
	}
	e.x, e.y = float32(n), float32(n*n%7)
	return []int32{int32(n)}, true, nil
}

// ledger records what is read.
type ledger struct{ read []int32 }

func (l *ledger) Intend(_ int64, _, _, _ int, inputs []int32) error {
	l.read = append(l.read, inputs...)
	return nil
}

func newTask(t *testing.T, threads, lanes int) (*Task[point], *ledger) {
	t.Helper()
	m, err := NewModel(line{}, tasktest.Device(t, threads))
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{}
	task, err := NewTask(m, Config[point]{Training: points{lanes}, Evaluation: points{lanes},
		Ledger: l, Tail: train.Tail})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		task.Close()
		m.Close()
	})
	return task, l
}

// TestSeats: the loss and the gradient of a segment, which has lanes without an example, are those
// of the examples, however they are dealt to seats and on any number of threads.
func TestSeats(t *testing.T) {
	const lanes = 12
	one, read := newTask(t, 1, lanes)
	for segment := range one.SegmentsPerEpoch() {
		loss, sum := 0.0, make([]float32, len(one.Params()))
		for lane := range lanes {
			var e point
			if _, ok, _ := one.cfg.Training.Fill(segment, lane, &e); ok {
				p := linePass{}
				loss += p.Forward(one.Params(), &e).Loss
				p.Backward(one.Params(), sum, 0.25)
			}
		}
		for _, seats := range [][]int{{12}, {5, 7}, {1, 2, 9}} {
			got, gradient := tasktest.Pass(t, one, segment, 0.25, seats...)
			if math.Abs(got-loss) > 1e-9*loss {
				t.Errorf("seats %v: loss %v, want %v", seats, got, loss)
			}
			for i, g := range gradient {
				if math.Abs(float64(g-sum[i])) > 1e-3 {
					t.Errorf("seats %v: gradient %d is %v, want %v", seats, i, g, sum[i])
				}
			}
			three, _ := newTask(t, 3, lanes)
			_, same := tasktest.Pass(t, three, segment, 0.25, seats...)
			if !slices.Equal(same, gradient) {
				t.Errorf("seats %v: three threads have other bits", seats)
			}
		}
	}
	if slices.Sort(read.read); len(read.read) != 3*numbers || read.read[0] != 0 ||
		read.read[3*numbers-1] != numbers-1 {
		t.Errorf("the ledger has %d", read.read)
	}
}

// TestStops: an error between the passes ends it, and so does one while reading.
func TestStops(t *testing.T) {
	task, _ := newTask(t, 1, 5)
	s, err := task.Open(5)
	if err != nil {
		t.Fatal(err)
	}
	lanes := train.Lanes{Count: 5}
	stop := s.Read(t.Context(), slices.Values([]train.Span{{Lanes: lanes},
		{Segment: 4, Lanes: lanes}}))
	defer stop()
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	_, err = s.Backward(train.Pass{Hooks: train.Hooks{
		BeforeBackward: func() error { return enough }}})
	if !errors.Is(err, enough) {
		t.Error(err)
	}
	if _, err := s.Next(t.Context()); err == nil || err.Error() !=
		"segment 4, lane 0: unreadable" {
		t.Error(err)
	}
}

// TestEvaluation: an evaluation has each example once.
func TestEvaluation(t *testing.T) {
	task, _ := newTask(t, 2, 6)
	var sum train.Score
	sum.Counts = []int64{0}
	for first := range 3 {
		s, err := task.Open(2)
		if err != nil {
			t.Fatal(err)
		}
		err = s.Evaluate(t.Context(), train.Lanes{First: 2 * first, Count: 2},
			func(part train.Score) {
				sum.Loss += part.Loss
				sum.Targets += part.Targets
				sum.Counts[0] += part.Counts[0]
			})
		if err != nil {
			t.Fatal(err)
		}
	}
	whole, err := Score(t.Context(), task.Model, Source[point](points{6}), 6)
	if err != nil {
		t.Fatal(err)
	}
	if sum.Targets != numbers || sum.Counts[0] != numbers*(numbers-1)/2 ||
		whole.Targets != sum.Targets || whole.Counts[0] != sum.Counts[0] ||
		math.Abs(whole.Loss-sum.Loss) > 1e-9*sum.Loss {
		t.Errorf("%+v and %+v", sum, whole)
	}
}
