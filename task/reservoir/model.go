// Package reservoir is the echo state network as a train.Task: a large, sparse, random recurrent
// network that is not trained, and a linear readout by ridge regression (Jaeger 2001, "The echo
// state approach to analysing and training recurrent neural networks"; Jaeger et al. 2007 for leaky
// units; Lukoševičius 2012, "A practical guide to applying echo state networks"; Goodfellow, Bengio
// and Courville, Deep Learning, 10.8). The parameters are the sums of the readout's normal
// equations: see task/count. It predicts time series as task/regress does.
//
// Of this module it may import compute, model, task/count, task/regress and train.
package reservoir

import (
	"fmt"

	"gonum.org/v1/gonum/mat"

	"rondo/compute"
	"rondo/model"
	"rondo/task/count"
	"rondo/task/regress"
	"rondo/train"
)

// Names of the tensors.
const (
	sumsName    = "readout.sums"      // [S, 5]: digits of A's upper triangle and of B
	columnsName = "reservoir.columns" // [N, D]: the units that a unit reads
	weightsName = "reservoir.weights" // [N, D]
	inputName   = "reservoir.input"   // [N, F+1]
)

// Config is a network's shape and constants.
type Config struct {
	Units           int // N
	Inputs, Outputs int // F, C
	SpectralRadius  float64
	Leak            float64 // a
	InputScale      float64
	Ridge           float64
	Washout         int // rows that are read before the first target of an example
	Seed            uint64
}

// Series is the data in host memory.
type Series struct {
	Inputs  []float32 // [rows, F], standardised
	Targets []float32 // [rows, C], standardised
	Units   regress.Units
}

// width is P.
func (c Config) width() int { return 1 + c.Inputs + c.Units }

// Layout returns the tensors' places in the flat parameters.
func Layout(c Config) []model.View {
	D := min(degree, c.Units)
	return count.Place(
		compute.Tensor{Name: sumsName, Shape: []int{packed(c.width(), c.Outputs), digits}},
		compute.Tensor{Name: columnsName, Shape: []int{c.Units, D}},
		compute.Tensor{Name: weightsName, Shape: []int{c.Units, D}},
		compute.Tensor{Name: inputName, Shape: []int{c.Units, c.Inputs + 1}})
}

// Model is a reservoir and the sums of its readout, in a device's memory. It implements
// count.Model.
type Model struct {
	count.Parameters
	config Config
	series *Series

	network *network
	readout *mat.Dense // [P, C]
	rows    float64    // summed in the readout; negative: there is none yet
}

// New makes a network without sums. The series is what it will read; nil: none. New fails if the
// device lacks memory. Close frees the model.
func New(c Config, series *Series, device compute.Device) (m *Model, err error) {
	defer compute.Catch(&err)
	m = &Model{Parameters: count.NewParameters(device, Layout(c)), config: c, series: series}
	m.Initialise()
	return m, nil
}

// Initialise implements count.Model: the reservoir that the seed draws, and no sums.
func (m *Model) Initialise() {
	n, views, flat := draw(m.config), m.Layout(), make([]float32, len(m.Params()))
	for i, column := range n.columns {
		flat[views[1].Offset+i] = float32(column)
	}
	for i, w := range n.weights {
		flat[views[2].Offset+i] = float32(w)
	}
	for i, w := range n.input {
		flat[views[3].Offset+i] = float32(w)
	}
	m.Device().Upload(m.Params(), flat)
	m.network, m.rows = nil, -1
}

// load reads the reservoir from the parameters, unless that is done, and the readout, if there are
// other sums than before. These only grow, each step from one state to the next, so the number of
// rows tells.
func (m *Model) load() error {
	flat, views := m.Download(), m.Layout()
	if m.network == nil {
		c := m.config
		n := &network{units: c.Units, inputs: c.Inputs, leak: c.Leak, sum: make([]float64, c.Units)}
		for i, x := range flat[views[1].Offset:][:views[1].Len] {
			if !(x >= 0 && x < float32(c.Units)) {
				return fmt.Errorf("%s %d is %v, and no unit", columnsName, i, x)
			}
			n.columns = append(n.columns, int32(x))
		}
		for _, w := range flat[views[2].Offset:][:views[2].Len] {
			n.weights = append(n.weights, float64(w))
		}
		for _, w := range flat[views[3].Offset:][:views[3].Len] {
			n.input = append(n.input, float64(w))
		}
		m.network = n
	}
	if rows := value(flat); rows != m.rows {
		readout, err := solve(flat[:views[0].Len], m.config.width(), m.config.Outputs,
			m.config.Ridge)
		if err != nil {
			return err
		}
		m.readout, m.rows = readout, rows
	}
	return nil
}

// predict computes y = Rᵀ [1, u, x].
func (m *Model) predict(u []float32, x []float64, y []float32) {
	for c := range y {
		sum := m.readout.At(0, c)
		for f, value := range u {
			sum += m.readout.At(1+f, c) * float64(value)
		}
		for i, value := range x {
			sum += m.readout.At(1+len(u)+i, c) * value
		}
		y[c] = float32(sum)
	}
}

// Context implements count.Model.
func (m *Model) Context() int { return m.config.Washout }

// input is a row's inputs.
func (m *Model) input(row int32) []float32 {
	F := m.config.Inputs
	return m.series.Inputs[int(row)*F:][:F]
}

// target is what is predicted of a row.
func (m *Model) target(row int32) []float32 {
	C := m.config.Outputs
	return m.series.Targets[int(row)*C:][:C]
}

// run reads a window's rows from a zero state, and calls each with every target, and with what was
// read before it.
func (m *Model) run(w count.Window, each func(target int32, u []float32, x []float64)) {
	x := make([]float64, m.config.Units)
	for i, row := range w.Tokens[1:] {
		u := m.input(w.Tokens[i])
		m.network.step(x, u)
		if i+1 >= w.Context {
			each(row, u, x)
		}
	}
}

// Score implements count.Model.
func (m *Model) Score(w count.Window) (train.Score, error) {
	if err := m.load(); err != nil {
		return train.Score{}, err
	}
	tally, predicted := m.series.Units.Tally(), make([]float32, m.config.Outputs)
	m.run(w, func(target int32, u []float32, x []float64) {
		m.predict(u, x, predicted)
		tally.Add(predicted, m.target(target))
	})
	return tally.Score(), nil
}

// block is the number of rows whose sums are added at a time.
const block = 16

// Add implements count.Model.
func (m *Model) Add(w count.Window, from []float32) error {
	if err := m.load(); err != nil {
		return err
	}
	P := m.config.width()
	sums := make([]float64, packed(P, m.config.Outputs))
	var z [][]float64
	var y [][]float32
	m.run(w, func(target int32, u []float32, x []float64) {
		row := make([]float64, 1, P)
		row[0] = 1
		for _, value := range u {
			row = append(row, float64(value))
		}
		z, y = append(z, append(row, x...)), append(y, m.target(target))
		if len(z) == block {
			accumulate(sums, z, y)
			z, y = z[:0], y[:0]
		}
	})
	if len(z) > 0 {
		accumulate(sums, z, y)
	}
	return cut(sums, from)
}

// Counters implements count.Model.
func (*Model) Counters() int { return 1 }

// Metrics implements count.Model.
func (m *Model) Metrics(s train.Score) []train.Metric { return m.series.Units.Metrics(s) }

// forecaster forecasts a series. Its K lanes are as those of model.Forecaster.
type forecaster struct {
	model     *Model
	columns   []int       // of the inputs: the predicted ones
	states    [][]float64 // [K, N]
	predicted []float32   // [K, C]
	inputs    []float32   // [F]
}

// NewForecaster makes a forecaster: see model.Model's.
func (m *Model) NewForecaster(ahead int, columns []int) (regress.Forecaster, error) {
	if len(columns) != m.config.Outputs {
		return nil, fmt.Errorf("reservoir: a forecast of %d columns; there are %d", len(columns),
			m.config.Outputs)
	}
	if err := m.load(); err != nil {
		return nil, err
	}
	f := &forecaster{model: m, columns: columns, inputs: make([]float32, m.config.Inputs),
		predicted: make([]float32, ahead*len(columns))}
	for range ahead {
		f.states = append(f.states, make([]float64, m.config.Units))
	}
	return f, nil
}

// Read implements regress.Forecaster.
func (f *forecaster) Read(row []float32) ([]float32, error) {
	C := len(f.columns)
	for lane := len(f.states) - 1; lane >= 0; lane-- {
		copy(f.inputs, row)
		if lane > 0 { // it goes on from the forecast that was begun a row later
			copy(f.states[lane], f.states[lane-1])
			for i, column := range f.columns {
				f.inputs[column] = f.predicted[(lane-1)*C+i]
			}
		}
		f.model.network.step(f.states[lane], f.inputs)
		f.model.predict(f.inputs, f.states[lane], f.predicted[lane*C:][:C])
	}
	return f.predicted, nil
}

// Close implements regress.Forecaster.
func (*forecaster) Close() {}
