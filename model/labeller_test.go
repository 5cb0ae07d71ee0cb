package model

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
)

// labelTrace is a file written by testdata/labeller.py, which documents the contents.
type labelTrace struct {
	Cell          string
	Layers        int
	T, B, V       int
	E, H, C       int
	Bidirectional bool
	Backward      int `json:"hidden_backward"`
	Pool          string
	Dropout       float64
	DropoutInput  float64 `json:"dropout_input"`
	Locked        bool
	Norm, Skip    bool
	Deep          bool
	Smoothing     float64
	Seed          uint64
	Step          int64
	Lanes         []int
	IDs           [][]int32
	Lengths       []int32
	Targets       []int32
	Output        []float64
	Logits        []float64
	Plain, Loss   float64
	Weights       map[string]traceTensor
	Gradients     map[string]traceTensor
}

// TestPyTorchTraceOfLabellers compares labellers with PyTorch over packed sequences: the last
// layer's outputs, the logits, the loss and every gradient agree, in graphs of several lengths.
func TestPyTorchTraceOfLabellers(t *testing.T) {
	forTraces(t, "testdata/labeller-*.json", 18, func(t *testing.T, file string) {
		var want labelTrace
		readTrace(t, file, &want)
		for _, most := range []int{want.T, 7, 30} {
			checkLabelTrace(t, want, most)
		}
	})
}

func checkLabelTrace(t *testing.T, want labelTrace, most int) {
	cell, err := compute.ParseCell(want.Cell)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := ParsePool(want.Pool)
	if err != nil {
		t.Fatal(err)
	}
	input, transition, output := deep(want.Deep)
	l := newLabeller(t, LabellerConfig{Cell: cell, Vocab: want.V, Embed: want.E, Hidden: want.H,
		Layers: want.Layers, Bidirectional: want.Bidirectional, HiddenBackward: want.Backward,
		Dropout:      want.Dropout,
		DropoutInput: want.DropoutInput, DropoutLocked: want.Locked, LayerNorm: want.Norm,
		Skip: want.Skip, LabelSmoothing: want.Smoothing, Labels: want.C, Pool: pool,
		DeepInput: input, DeepTransition: transition, DeepOutput: output, Seed: want.Seed})
	setTensors(t, l, want.Weights)
	p := newPass(t, l, most, want.B)
	in := Examples{Steps: want.T, Inputs: slices.Concat(want.IDs...), Lengths: want.Lengths,
		Targets: want.Targets, Lanes: want.Lanes, Step: want.Step, Scale: 1}
	loss, err := p.Backward(in, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	if e := math.Abs(loss - want.Loss); e > traceTolerance*want.Loss {
		t.Errorf("loss %v, PyTorch has %v", loss, want.Loss)
	}
	compareTensors(t, "gradient", l, l.Gradients(), want.Gradients)
	g, err := p.graph(want.T)
	if err != nil {
		t.Fatal(err)
	}
	if want.Dropout == 0 {
		checkPrediction(t, p, in, want)
	}
	y := download(l, g.stack.outputOf(want.Layers-1).flat)[:len(want.Output)]
	for i := range y {
		if row := i / (len(y) / (want.T * want.B)); !in.inside(row, want.B) {
			y[i] = 0
		}
	}
	if e := relative(y, want.Output); e > traceTolerance {
		t.Errorf("the last layer's output: relative error %.2g", e)
	}
}

// deep is the parts that testdata/deep.py has; without, there are none.
func deep(with bool) (input, transition, output int) {
	if !with {
		return 0, 0, 0
	}
	return 2, 2, 1
}

// checkPrediction compares a prediction with the trace.
func checkPrediction(t *testing.T, p *LabelPass, in Examples, want labelTrace) {
	logits, plain := make([]float32, len(want.Logits)), cmp.Or(want.Plain, want.Loss)
	if loss, err := p.Predict(in, logits); err != nil || math.Abs(loss-plain) >
		traceTolerance*plain {
		t.Errorf("predicted with a loss of %v, PyTorch has %v: %v", loss, plain, err)
	}
	if want.Pool == PoolNone.String() { // padding's logits mean nothing
		for i := range logits {
			if !in.inside(i/want.C, want.B) {
				logits[i] = float32(want.Logits[i])
			}
		}
	}
	if e := relative(logits, want.Logits); e > traceTolerance {
		t.Errorf("logits: relative error %.2g", e)
	}
}

// newLabeller makes a labeller on a CPU, and closes it after the test.
func newLabeller(t testing.TB, cfg LabellerConfig) *Labeller {
	t.Helper()
	l, err := NewLabeller(cfg, newDevice(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// newPass makes a pass, and closes it after the test.
func newPass(t testing.TB, l *Labeller, maxSteps, B int) *LabelPass {
	t.Helper()
	p, err := l.NewPass(maxSteps, B)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// labellers are configurations that together have every part.
func labellers() map[string]LabellerConfig {
	all := map[string]LabellerConfig{}
	for _, cell := range compute.Cells() {
		for pool, name := range PoolNames() {
			c := LabellerConfig{Cell: cell, Vocab: 9, Hidden: 5, Layers: 2, Labels: 4,
				Pool: Pool(pool), Seed: 7}
			if c.Pool == PoolPlaces {
				c.Places = 3
			}
			all[cell.String()+"/"+name+"/one-hot"] = c
			c.Embed, c.Dropout, c.DropoutInput, c.Bidirectional = 11, 0.3, 0.2, true
			all[cell.String()+"/"+name+"/bidirectional"] = c
			switch c.Pool {
			case PoolNone:
				c.SkipThroughTime = 3
				all[cell.String()+"/through-time"] = c
				c.SkipThroughTime, c.DropoutLocked = 0, true
				all[cell.String()+"/locked"] = c
				c.DeepInput, c.DeepTransition, c.DeepOutput = 2, 1, 1
				all[cell.String()+"/deep"] = c
			case PoolLast:
				c.Skip, c.HiddenBackward = true, 7
				all[cell.String()+"/skip"] = c
			default:
				c.LayerNorm, c.Skip, c.Dropout = true, true, 0
				c.DeepOutput = 2
				all[cell.String()+"/"+name+"/norm"] = c
			}
		}
	}
	return all
}

// randomExamples draws a batch of B examples of up to T tokens.
func randomExamples(rng *rand.Rand, c LabellerConfig, T, B int) Examples {
	in := Examples{Steps: T, Scale: 0.5, Step: 4, Lengths: make([]int32, B),
		Inputs: make([]int32, T*B)}
	for b := range B {
		in.Lengths[b] = int32(rng.IntN(T + 1))
		in.Lanes = append(in.Lanes, 10+3*b)
	}
	in.Lengths[rng.IntN(B)] = int32(T)
	for i := range in.Inputs {
		in.Inputs[i] = int32(rng.IntN(c.Vocab))
	}
	for i := range c.outputRows(T, B) {
		in.Targets = append(in.Targets, int32(rng.IntN(c.Labels+1))-1)
		if c.Pool == PoolPlaces { // one of two steps, or none
			if t := int32(i/B + c.Places*rng.IntN(2)); t < in.Lengths[i%B] {
				in.Places = append(in.Places, t)
			} else {
				in.Places = append(in.Places, -1)
			}
		}
	}
	return in
}

// backward runs a pass, and returns the loss and the gradients.
func backward(t testing.TB, p *LabelPass, in Examples) (float64, []float32) {
	t.Helper()
	loss, err := p.Backward(in, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	return loss, download(p.labeller, p.labeller.Gradients())
}
