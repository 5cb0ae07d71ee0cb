package devicetest

import (
	"encoding/json"
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

// trace is the output of testdata/trace.py; its comment explains the fields.
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

// traceFloor is the least value that an error is relative to: |got-want| / max(|want|, traceFloor).
const traceFloor = 1e-3

// traceBounds are the largest relative error of a loss and of a tensor's element in fp32. PyTorch
// made the traces in float64; where operands are rounded, the bounds say how far that leads away
// from them (bf16: 2^-9 of each): for losses, and for the root of a tensor's mean squared error as
// a share of that of its values, since single elements may be sums that nearly cancel.
func traceBounds(p compute.Precision) (loss, tensor float64) {
	if p == compute.FP32 {
		return 1e-4, 1e-4
	}
	return 3e-3, 3e-2
}

// testTraces compares loss, every gradient, ten SGD steps and the final weights with PyTorch's. The
// traces lie beside the packages that run the suite.
func testTraces(r *rig) {
	files, err := filepath.Glob("../testdata/*.json")
	if err != nil || len(files) != 24 {
		r.Fatalf("traces %v (%v), want 24", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			r.Fatal(err)
		}
		var tr trace
		if err := json.Unmarshal(text, &tr); err != nil {
			r.Fatalf("%s: %v", file, err)
		}
		r.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			tr.run(t, r.dev, r.precision)
		})
	}
}

func (tr trace) stack(t *testing.T, dev compute.Device) *stack {
	cell, err := compute.ParseCell(tr.Cell)
	if err != nil {
		t.Fatal(err)
	}
	s := newStack(dev, cell, tr.Layers, tr.T, tr.B, tr.V, 0, tr.H)
	for name, w := range tr.Weights {
		s.add(name, w.Data)
	}
	for i := range tr.T {
		copy(s.ids[i*tr.B:], tr.IDs[i])
		copy(s.targets[i*tr.B:], tr.Targets[i])
	}
	return s
}

func (tr trace) run(t *testing.T, dev compute.Device, p compute.Precision) {
	lossBound, bound := traceBounds(p)
	s, off := tr.stack(t, dev), 0.0
	defer s.close()
	for i, want := range tr.SGD.Losses {
		s.step()
		e := traceRelative(s.head.Sum()*float64(s.scale), want)
		if off = worse(off, e); !(e <= lossBound) {
			t.Errorf("step %d: the loss is not %.9g: relative error %.2g", i, want, e)
		}
		if i == 0 {
			e := traceError(t, p, dev, s.gradient, tr.Gradients)
			t.Logf("largest error of a gradient: %.2g", e)
			if !(e <= bound) {
				t.Errorf("gradients: error %.2g, want at most %.2g", e, bound)
			}
		}
		s.update(compute.Update{Optimizer: compute.SGD, LR: tr.SGD.LR})
	}
	e := traceError(t, p, dev, s.weights, tr.SGD.WeightsAfter)
	t.Logf("largest error of a loss %.2g, of the weights after %d steps %.2g", off,
		len(tr.SGD.Losses), e)
	if !(e <= bound) {
		t.Errorf("weights after: error %.2g, want at most %.2g", e, bound)
	}
}

// traceError is the largest error of a tensor, as traceBounds means it.
func traceError(t *testing.T, p compute.Precision, dev compute.Device, got map[string][]float32,
	want map[string]tensor) float64 {
	t.Helper()
	all := 0.0
	for name, w := range want {
		if len(got[name]) != len(w.Data) {
			t.Fatalf("%s has %d elements, want %d", name, len(got[name]), len(w.Data))
		}
		largest, errors, squares := 0.0, 0.0, 0.0
		for i, x := range get(dev, got[name]) {
			g, w := float64(x), float64(w.Data[i])
			largest = worse(largest, traceRelative(g, w))
			errors, squares = errors+(g-w)*(g-w), squares+w*w
		}
		if p != compute.FP32 {
			largest = math.Sqrt(errors / squares)
		}
		all = worse(all, largest)
	}
	return all
}

func traceRelative(got, want float64) float64 {
	return math.Abs(got-want) / math.Max(math.Abs(want), traceFloor)
}
