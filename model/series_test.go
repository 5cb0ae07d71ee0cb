package model

import (
	"slices"
	"testing"

	"rondo/compute"
	"rondo/compute/devicetest"
)

// seriesTrace is a file that testdata/series.py wrote.
type seriesTrace struct {
	Cell               string
	Layers, T, B, F, H int
	Columns            []int
	Deep, Through      bool
	Series             []float32
	Rows               [2][]int32
	Weights            map[string]traceTensor
	Losses             [2]float64
	Gradients          [2]map[string]traceTensor
	Ahead              int
	Forecasts          []float64
}

// model makes the trace's model, with its weights and series.
func (w *seriesTrace) model(t *testing.T, dev compute.Device, recompute int) *Model {
	t.Helper()
	cell, err := compute.ParseCell(w.Cell)
	if err != nil {
		t.Fatal(err)
	}
	input, transition, output := deep(w.Deep)
	through := 0
	if w.Through {
		through = 3
	}
	m := newModelOn(t, Config{Cell: cell, SkipThroughTime: through, Inputs: w.F,
		Vocab: len(w.Columns), Hidden: w.H,
		Layers: w.Layers, Recompute: recompute, DeepInput: input, DeepTransition: transition,
		DeepOutput: output}, dev)
	setTensors(t, m, w.Weights)
	var targets []float32
	for row := range slices.Chunk(w.Series, w.F) {
		for _, column := range w.Columns {
			targets = append(targets, row[column])
		}
	}
	if err := m.SetSeries(w.Series, targets); err != nil {
		t.Fatal(err)
	}
	return m
}

// input is a segment's input.
func (w *seriesTrace) input(segment int) SegmentInput {
	in := SegmentInput{Inputs: w.Rows[segment], Scale: 1 / float32(w.T*w.B)}
	for _, row := range in.Inputs {
		in.Targets = append(in.Targets, row+1)
	}
	return in
}

// TestSeriesTrace compares two segments with carried state, predictions, and forecasts with
// PyTorch: on the CPU, in memory that the host cannot touch, on a device that records, and in
// chunks.
func TestSeriesTrace(t *testing.T) {
	forTraces(t, "testdata/series-*.json", 5, func(t *testing.T, file string) {
		var want seriesTrace
		readTrace(t, file, &want)
		for _, recompute := range []int{0, 3} {
			checkSeries(t, want.model(t, newDevice(t), recompute), &want)
			protected := devicetest.NewProtected(t, newDevice(t), 1<<16)
			checkSeries(t, want.model(t, protected, recompute), &want)
			checkSeries(t, want.model(t, devicetest.NewRecorder(newDevice(t)), recompute), &want)
		}
		checkForecasts(t, want.model(t, newDevice(t), 0), &want)
	})
}

func checkSeries(t *testing.T, m *Model, want *seriesTrace) {
	t.Helper()
	s, rows := newSegment(t, m, want.T, want.B), float64(want.T*want.B)
	for range 3 { // a device records the second run, and replays it in the third
		s.ZeroState()
		s.ZeroEvaluationState()
		for segment, loss := range want.Losses {
			in := want.input(segment)
			got := run(t, s, in) / rows
			if e := relative([]float32{float32(got)}, []float64{loss}); e > traceTolerance {
				t.Errorf("segment %d: loss %v, PyTorch has %v", segment, got, loss)
			}
			compareTensors(t, "gradient", m, m.Gradients(), want.Gradients[segment])
			if e := predictionError(t, s, in, want); e/loss-1 > 1e-4 || e/loss-1 < -1e-4 {
				t.Errorf("segment %d: predictions err by %v, PyTorch's by %v", segment, e, loss)
			}
		}
	}
}

// predictionError is the mean squared error of Predict.
func predictionError(t *testing.T, s *Segment, in SegmentInput, want *seriesTrace) (mean float64) {
	t.Helper()
	C := len(want.Columns)
	y := make([]float32, len(in.Inputs)*C)
	if err := s.Predict(in.Inputs, y); err != nil {
		t.Fatal(err)
	}
	for i, row := range in.Targets {
		for c, column := range want.Columns {
			e := float64(y[i*C+c] - want.Series[int(row)*want.F+column])
			mean += e * e / float64(len(y))
		}
	}
	return mean
}

func checkForecasts(t *testing.T, m *Model, want *seriesTrace) {
	t.Helper()
	f, err := m.NewForecaster(want.Ahead, want.Columns)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := len(want.Columns)
	for i := range len(want.Series) / want.F {
		got, err := f.Read(want.Series[i*want.F:][:want.F])
		if err != nil {
			t.Fatal(err)
		}
		known := n * min(i+1, want.Ahead)
		if e := relative(got[:known], want.Forecasts[i*want.Ahead*n:][:known]); e > 1e-4 {
			t.Errorf("after row %d: relative error %.2g", i, e)
		}
	}
}

// A series refuses rows that it lacks, tables of another shape, and an embedding.
func TestSeriesRefuses(t *testing.T) {
	m := newModel(t, Config{Cell: compute.GRU, Inputs: 2, Vocab: 1, Hidden: 3, Layers: 1})
	if err := m.SetSeries(make([]float32, 6), make([]float32, 2)); err == nil {
		t.Error("3 rows of inputs and 2 of targets are accepted")
	}
	if err := m.SetSeries(make([]float32, 6), make([]float32, 3)); err != nil {
		t.Fatal(err)
	}
	s := newSegment(t, m, 1, 1)
	for _, in := range [][2]int32{{3, 0}, {0, -2}, {-1, 0}, {0, 3}} {
		if _, err := s.Run(SegmentInput{Inputs: in[:1], Targets: in[1:]}); err == nil {
			t.Errorf("row %d before row %d is accepted", in[0], in[1])
		}
	}
	if _, err := m.NewForecaster(0, []int{0}); err == nil {
		t.Error("a forecast of no step is accepted")
	}
	if (Config{Inputs: 1, Embed: 2, Vocab: 1, Hidden: 1, Layers: 1}).Validate() == nil {
		t.Error("an embedding of numbers is accepted")
	}
}
