package cpu

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rondo/compute"
)

// tensor is one of a trace's.
type tensor struct {
	Shape []int
	Data  []float32
}

// trace is what testdata/trace.py writes; its comment says what the fields are.
type trace struct {
	Cell               string
	Layers, T, B, V, H int
	IDs, Targets       [][]int32
	Weights, Gradients map[string]tensor
	Loss               float64
	SGD                struct {
		LR           float32
		Losses       []float64
		WeightsAfter map[string]tensor `json:"weights_after"`
	}
}

// traceFloor is what an error is at least relative to: |got-want| / max(|want|, traceFloor).
const traceFloor = 1e-3

// traceTolerance is the largest relative error of a loss and of a tensor's element in fp32. PyTorch
// made the traces in float64; the tolerances of bf16 say how far its operands' rounding, 2^-9 of
// each, leads away from them: for losses, and for the root of a tensor's mean squared error as a
// share of that of its values, since single elements may be sums that nearly cancel.
const (
	traceTolerance = 1e-4
	bf16Loss       = 3e-3
	bf16Tensor     = 3e-2
)

// traceModel is a stack of layers and an output layer, composed by hand.
type traceModel struct {
	trace
	weights, gradient map[string][]float32
	layers            []compute.Recurrent
	head              compute.Output
	y, dy             [][]float32 // per layer, [T, B, H]
	zero, last        compute.RecurrentState
	ids, targets      []int32
}

func newTraceModel(d *Device, tr trace) *traceModel {
	cell := map[string]compute.Cell{"rnn": compute.RNNTanh, "rnn-relu": compute.RNNReLU,
		"gru": compute.GRU, "lstm": compute.LSTM}[tr.Cell]
	m := &traceModel{trace: tr,
		weights: map[string][]float32{}, gradient: map[string][]float32{}}
	for name, t := range tr.Weights {
		m.weights[name], m.gradient[name] = d.Alloc(len(t.Data)), d.Alloc(len(t.Data))
		d.Upload(m.weights[name], t.Data)
	}
	n := tr.T * tr.B
	for l := range tr.Layers {
		width := tr.H
		if l == 0 {
			width = tr.V
		}
		m.layers = append(m.layers, d.NewRecurrent(
			compute.RecurrentShape{Cell: cell, T: tr.T, B: tr.B, D: width, H: tr.H}, false))
		m.y, m.dy = append(m.y, d.Alloc(n*tr.H)), append(m.dy, d.Alloc(n*tr.H))
	}
	m.head = d.NewOutput(compute.OutputShape{N: n, H: tr.H, V: tr.V})
	for _, s := range []*compute.RecurrentState{&m.zero, &m.last} {
		*s = compute.RecurrentState{H: d.Alloc(tr.B * tr.H), C: d.Alloc(tr.B * tr.H)}
	}
	for t := range tr.T {
		m.ids, m.targets = append(m.ids, tr.IDs[t]...), append(m.targets, tr.Targets[t]...)
	}
	return m
}

func (m *traceModel) close() {
	for _, l := range m.layers {
		l.Close()
	}
	m.head.Close()
}

// of returns layer l's tensors.
func of(tensors map[string][]float32, l int) compute.RecurrentWeights {
	name := func(part string) []float32 { return tensors[fmt.Sprintf("rnn.%s_l%d", part, l)] }
	return compute.RecurrentWeights{IH: name("weight_ih"), HH: name("weight_hh"),
		BiasIH: name("bias_ih"), BiasHH: name("bias_hh")}
}

// step returns the mean loss and sets the gradients.
func (m *traceModel) step() float64 {
	in := compute.RecurrentInput{IDs: m.ids}
	for l, layer := range m.layers {
		layer.Forward(of(m.weights, l), in, m.zero, m.y[l], m.last)
		in = compute.RecurrentInput{X: m.y[l]}
	}
	n, top := len(m.targets), len(m.layers)-1
	m.head.ForwardBackward(m.y[top], m.weights["output.weight"],
		m.weights["output.bias"], m.targets, 1/float32(n), m.dy[top],
		m.gradient["output.weight"], m.gradient["output.bias"])
	for l := top; l >= 0; l-- {
		var dx []float32
		if l > 0 {
			dx = m.dy[l-1]
		}
		m.layers[l].Backward(m.dy[l], compute.RecurrentState{}, of(m.gradient, l), dx,
			compute.RecurrentState{})
	}
	return m.head.Sum() / float64(n)
}

// traceError is the largest error of a tensor: in fp32 the largest relative error of an element, in
// bf16 the root of the mean squared error as a share of that of the values.
func traceError(t *testing.T, p compute.Precision, got map[string][]float32,
	want map[string]tensor) float64 {
	t.Helper()
	worst := 0.0
	for name, w := range want {
		if len(got[name]) != len(w.Data) {
			t.Fatalf("%s has %d elements, want %d", name, len(got[name]), len(w.Data))
		}
		largest, errors, squares := 0.0, 0.0, 0.0
		for i, v := range w.Data {
			g, w := float64(got[name][i]), float64(v)
			largest = worse(largest, traceRelative(g, w))
			errors, squares = errors+(g-w)*(g-w), squares+w*w
		}
		if p == compute.BF16 {
			largest = math.Sqrt(errors / squares)
		}
		worst = worse(worst, largest)
	}
	return worst
}

func traceRelative(got, want float64) float64 {
	return math.Abs(got-want) / math.Max(math.Abs(want), traceFloor)
}

// worse is the larger error; NaN is the worst.
func worse(a, b float64) float64 {
	if math.IsNaN(a) || math.IsNaN(b) {
		return math.Inf(1)
	}
	return math.Max(a, b)
}

// TestTrace holds loss, every gradient, ten SGD steps and the weights after them against PyTorch.
func TestTrace(t *testing.T) {
	files, err := filepath.Glob("../testdata/*.json")
	if err != nil || len(files) != 8 {
		t.Fatalf("traces %v (%v), want 8", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var tr trace
		if err := json.Unmarshal(text, &tr); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			onDevices(t, func(t *testing.T, d *Device) { runTrace(t, d, tr) })
		})
	}
}

func runTrace(t *testing.T, d *Device, tr trace) {
	lossBound, bound := traceTolerance, traceTolerance
	if d.Precision() == compute.BF16 {
		lossBound, bound = bf16Loss, bf16Tensor
	}
	m := newTraceModel(d, tr)
	defer m.close()
	off := 0.0
	for i, want := range tr.SGD.Losses {
		loss := m.step()
		off = worse(off, traceRelative(loss, want))
		if e := traceRelative(loss, want); !(e <= lossBound) {
			t.Errorf("step %d: loss %.9g, want %.9g: relative error %.2g", i, loss, want, e)
		}
		if i == 0 {
			e := traceError(t, d.Precision(), m.gradient, tr.Gradients)
			t.Logf("largest error of a gradient: %.2g", e)
			if !(e <= bound) {
				t.Errorf("gradients: error %.2g, want at most %.2g", e, bound)
			}
		}
		u := compute.Update{Optimizer: compute.SGD, LR: tr.SGD.LR}
		for name, w := range m.weights {
			d.Update(u, w, m.gradient[name], nil, nil)
		}
	}
	e := traceError(t, d.Precision(), m.weights, tr.SGD.WeightsAfter)
	t.Logf("largest error of a loss %.2g, of the weights after %d steps %.2g", off,
		len(tr.SGD.Losses), e)
	if !(e <= bound) {
		t.Errorf("weights after: error %.2g, want at most %.2g", e, bound)
	}
}
