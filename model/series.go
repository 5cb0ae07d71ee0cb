package model

import (
	"fmt"

	"rondo/compute"
)

// series is a time series in a device's memory. Segments read its rows by number, as a model of
// text looks up tokens.
type series struct {
	rows    int
	inputs  []float32 // [rows, F]
	negated []float32 // [rows, V]: what each row has of the predicted numbers, times -1
}

// check returns an error for a row that the series lacks; least is -1 if there may be none.
func (s *series) check(what string, ids []int32, least int32) error {
	for i, id := range ids {
		if id < least || int(id) >= s.rows {
			return fmt.Errorf("model: %s %d is row %d; the series has %d", what, i, id, s.rows)
		}
	}
	return nil
}

// SetSeries gives a model with Config.Inputs the series that its segments and evaluators read:
// inputs, [rows, F], and targets, [rows, V], in host memory. Ids are numbers of rows. Call it once,
// before the first of them is made.
func (m *Model) SetSeries(inputs, targets []float32) (err error) {
	c := m.config
	rows := len(inputs) / max(1, c.Inputs)
	if rows < 1 || len(inputs) != rows*c.Inputs || len(targets) != rows*c.Vocab {
		return fmt.Errorf("model: a series of %d inputs and %d targets; %d and %d are in a row",
			len(inputs), len(targets), c.Inputs, c.Vocab)
	}
	defer compute.Catch(&err)
	m.series = series{rows: rows}
	m.series.inputs = m.dev.Alloc(len(inputs))
	m.series.negated = m.dev.Alloc(len(targets))
	m.dev.Upload(m.series.inputs, inputs)
	m.dev.Upload(m.series.negated, targets)
	m.dev.Scale(m.series.negated, -1)
	return nil
}

// Close frees the model. Close what was made from it first.
func (m *Model) Close() {
	m.dev.Free(m.series.inputs)
	m.dev.Free(m.series.negated)
	m.series = series{}
	m.parameters.Close()
}

// predict computes the output layer: x: [n, H], y: [n, V].
func (m *Model) predict(x []float32, w weights, y []float32) {
	c := m.config
	m.dev.Gemm(false, true, len(y)/c.Vocab, c.Vocab, c.outputWidth(), 1, x, w.output, 0, y)
	m.dev.AddBias(y, w.bias)
}

// Predict reads rows of the series, [T, B], and copies the predictions that follow each to y, host
// memory of [T, B, V]. The next call continues from this call's state.
func (e *Evaluator) Predict(rows []int32, y []float32) (err error) {
	c := e.model.config
	if n := e.T * e.B; c.Inputs == 0 || len(rows) != n || len(y) != n*c.Vocab {
		return fmt.Errorf("model: an evaluation of %d rows was given %d, and room for %d numbers",
			n, len(rows), len(y))
	}
	if err := e.model.checkIDs("row", rows, 0); err != nil {
		return err
	}
	defer compute.Catch(&err)
	for len(rows) > 0 {
		r := e.chunk
		if len(rows) < r.n {
			r = e.rest
		}
		copy(r.ids, rows)
		e.model.predict(r.run(r.ids, e.state), r.weights, r.predicted)
		e.model.dev.Download(y[:len(r.predicted)], r.predicted)
		rows, y = rows[r.n:], y[len(r.predicted):]
	}
	return nil
}

// Predict runs the forward pass, without dropout: see Evaluator.Predict. It has its own state,
// distinct from Run's.
func (s *Segment) Predict(rows []int32, y []float32) (err error) {
	if s.evaluator == nil {
		if s.evaluator, err = s.model.NewEvaluator(s.T, s.B); err != nil {
			return err
		}
	}
	return s.evaluator.Predict(rows, y)
}

// Forecaster predicts a series up to K steps ahead. Its K lanes are K forecasts, begun at the last
// K rows: lane j has read the series up to j rows ago, and from there its own predictions.
type Forecaster struct {
	*inference
	ahead     int
	columns   []int // of the inputs: the predicted ones
	states    [2]state
	from      []int32 // rows of the states from which each lane goes on
	inputs    []float32
	predicted []float32 // [K, V], device memory
	host      []float32 // its copy
}

// NewForecaster makes a forecaster for 1 to ahead steps, at the start of a series. The network
// predicts these columns of its inputs. It fails if the device lacks memory. Close frees it.
func (m *Model) NewForecaster(ahead int, columns []int) (f *Forecaster, err error) {
	c := m.config
	if ahead < 1 || c.Inputs == 0 || len(columns) != c.Vocab {
		return nil, fmt.Errorf("model: a forecast of %d steps and %d columns; there are %d", ahead,
			len(columns), c.Vocab)
	}
	f = &Forecaster{inference: newInference(m, 1, ahead), ahead: ahead, columns: columns,
		inputs: make([]float32, ahead*c.Inputs), host: make([]float32, ahead*c.Vocab)}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	defer compute.Catch(&err)
	f.allocate(ahead)
	f.states = [2]state{newState(m, ahead), newState(m, ahead)}
	f.predicted = m.dev.Alloc(len(f.host))
	for i := range ahead * c.StateSize() / c.Hidden {
		lane := i % ahead
		f.from = append(f.from, int32(i-lane+max(0, lane-1)))
	}
	return f, nil
}

// Read reads the series' next row: F numbers. It returns [K, V]: row j is the prediction of the row
// after it, j+1 steps ahead. It is not meaningful before j+1 rows were read, and valid until the
// next call. Columns that are not predicted have the row's values in all lanes.
func (f *Forecaster) Read(row []float32) (predicted []float32, err error) {
	c, dev := f.model.config, f.model.dev
	defer compute.Catch(&err)
	for lane := range f.ahead {
		in := f.inputs[lane*c.Inputs:][:c.Inputs]
		copy(in, row)
		for i, column := range f.columns {
			if lane > 0 { // what the forecast that was begun a row later has predicted
				in[column] = f.host[(lane-1)*c.Vocab+i]
			}
		}
	}
	x := f.rows[0][:len(f.inputs)]
	dev.Upload(x, f.inputs)
	now, next := f.states[0], f.states[1]
	f.model.predict(f.runLayers(compute.RecurrentInput{X: x}, now), f.weights, f.predicted)
	dev.CopyRows(packed(next.flat, c.Hidden), packed(now.flat, c.Hidden), len(f.from), c.Hidden,
		f.from, false)
	f.states = [2]state{next, now}
	dev.Download(f.host, f.predicted)
	return f.host, nil
}

// Close frees the forecaster's memory, not the model's.
func (f *Forecaster) Close() {
	f.inference.close()
	for i := range f.states {
		f.states[i].close()
	}
	f.model.dev.Free(f.predicted)
}
