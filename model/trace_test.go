package model

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"rondo/compute"
)

// tolerance of the comparison with PyTorch: largest difference over largest magnitude.
const traceTolerance = 1e-4

// trace is a file written by compute/testdata/trace.py, or by testdata/dropout.py or adaptive.py,
// which add fields. These scripts document the contents.
type trace struct {
	Cell         string
	T, B, V, H   int
	Layers       int
	Embed        int
	Tied         bool
	Dropout      float64
	DropoutInput float64 `json:"dropout_input"`
	Locked       bool
	Norm, Skip   bool

	DropoutOutput *float64 `json:"dropout_output"`
	DropoutWords  float64  `json:"dropout_words"`
	WeightDrop    float64  `json:"weight_drop"`
	ActivationL2  float64  `json:"activation_l2"`
	TemporalL2    float64  `json:"temporal_l2"`

	Cutoffs []int
	LogP    [][]float64

	Seed         uint64
	Lanes        []int
	Output       []float64
	IDs, Targets [][]int32
	Weights      map[string]traceTensor
	Loss         float64
	Gradients    map[string]traceTensor
	SGD          struct {
		LR           float32
		Losses       []float64
		WeightsAfter map[string]traceTensor `json:"weights_after"`
	}
}

type traceTensor struct {
	Shape []int
	Data  []float64
}

// TestPyTorchTrace trains each model of the PyTorch trace from its weights: the loss, every
// gradient, ten losses under SGD and the final weights agree.
func TestPyTorchTrace(t *testing.T) { checkTraces(t, "../compute/testdata/*.json", 24) }

// TestPyTorchTraceOfDropout does the same with dropout of the embedding and of every layer's
// output, of words and of recurrent weights, and with penalties on outputs. PyTorch received the
// masks. The last layer's output agrees too.
func TestPyTorchTraceOfDropout(t *testing.T) { checkTraces(t, "testdata/dropout-*.json", 13) }

// TestPyTorchTraceOfAdaptive does the same with an adaptive softmax, and compares the probabilities
// of all tokens.
func TestPyTorchTraceOfAdaptive(t *testing.T) { checkTraces(t, "testdata/adaptive-*.json", 2) }

func checkTraces(t *testing.T, pattern string, number int) {
	forTraces(t, pattern, number, checkTrace)
}

func forTraces(t *testing.T, pattern string, number int, check func(*testing.T, string)) {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) != number {
		t.Fatalf("%s: %d files, want %d: %v", pattern, len(files), number, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { check(t, file) })
	}
}

// readTrace reads a trace's file.
func readTrace(t *testing.T, file string, want any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, want); err != nil {
		t.Fatal(err)
	}
}

// setTensors sets all of a network's parameters.
func setTensors(t *testing.T, m network, weights map[string]traceTensor) {
	t.Helper()
	if len(m.Layout()) != len(weights) {
		t.Fatalf("%d tensors, the trace has %d", len(m.Layout()), len(weights))
	}
	flat := make([]float32, Span(m.Layout()))
	for _, v := range m.Layout() {
		w, ok := weights[v.Name]
		if !ok || fmt.Sprint(w.Shape) != fmt.Sprint(v.Shape) {
			t.Fatalf("%s %v: the trace has shape %v", v.Name, v.Shape, w.Shape)
		}
		for i, x := range w.Data {
			v.of(flat)[i] = float32(x)
		}
	}
	m.Device().Upload(m.Params(), flat)
}

func checkTrace(t *testing.T, file string) {
	var want trace
	readTrace(t, file, &want)
	cell, err := compute.ParseCell(want.Cell)
	if err != nil {
		t.Fatal(err)
	}
	m := newModel(t, Config{Cell: cell, Vocab: want.V, Hidden: want.H, Layers: want.Layers,
		Embed: want.Embed, TieWeights: want.Tied, Dropout: want.Dropout,
		DropoutInput: want.DropoutInput, DropoutLocked: want.Locked, LayerNorm: want.Norm,
		Skip: want.Skip, Seed: want.Seed, DropoutOutput: want.DropoutOutput,
		DropoutWords: want.DropoutWords, WeightDrop: want.WeightDrop,
		ActivationL2: want.ActivationL2, TemporalL2: want.TemporalL2, Cutoffs: want.Cutoffs})
	setTensors(t, m, want.Weights)
	checkLogP(t, m, want)
	rows := float32(want.T * want.B)
	in := SegmentInput{Scale: 1 / rows, Lanes: want.Lanes}
	for i := range want.IDs {
		in.Inputs = append(in.Inputs, want.IDs[i]...)
		in.Targets = append(in.Targets, want.Targets[i]...)
	}
	s := newSegment(t, m, want.T, want.B)
	for step, loss := range want.SGD.Losses {
		s.ZeroState()
		in.Step = int64(step)
		got := run(t, s, in) / float64(rows)
		if e := relative([]float32{float32(got)}, []float64{loss}); e > traceTolerance {
			t.Errorf("step %d: loss %v, PyTorch has %v", step, got, loss)
		}
		if step == 0 {
			compareTensors(t, "gradient", m, m.Gradients(), want.Gradients)
			y := download(m, s.chunk.stack.outputOf(want.Layers-1).flat)
			if e := relative(y, want.Output); want.Output != nil && e > traceTolerance {
				t.Errorf("the last layer's output: relative error %.2g", e)
			}
		}
		m.dev.Update(compute.Update{Optimizer: compute.SGD, Step: int64(step + 1),
			LR: want.SGD.LR}, m.Params(), m.Gradients(), nil, nil)
	}
	compareTensors(t, "weight after SGD", m, m.Params(), want.SGD.WeightsAfter)
}

// checkLogP compares the output layer's logits, if the trace has them, in two evaluations: of all
// steps and of fewer at a time.
func checkLogP(t *testing.T, m *Model, want trace) {
	for _, T := range []int{want.T, 1} {
		if want.LogP == nil {
			return
		}
		e, err := m.NewEvaluator(T, want.B)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		row := 0
		for first := 0; first < want.T; first += T {
			inputs := slices.Concat(want.IDs[first : first+T]...)
			hidden, got := make([]float32, len(inputs)*want.H), make([]float32, len(inputs)*want.V)
			if err := e.Outputs(inputs, hidden, got); err != nil {
				t.Fatal(err)
			}
			for ; len(got) > 0; got, row = got[want.V:], row+1 {
				if e := relative(got[:want.V], want.LogP[row]); e > traceTolerance {
					t.Errorf("log probabilities of row %d: relative error %.2g", row, e)
				}
			}
		}
	}
}

func compareTensors(t *testing.T, what string, m network, flat []float32,
	want map[string]traceTensor) {
	t.Helper()
	for _, v := range m.Layout() {
		got := download(m, v.of(flat))
		if e := relative(got, want[v.Name].Data); e > traceTolerance {
			t.Errorf("%s %s: relative error %.2g", what, v.Name, e)
		}
	}
}
