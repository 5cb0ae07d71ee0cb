package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
)

// TestSegmentErrors expects an error and an unchanged state for input that does not fit.
func TestSegmentErrors(t *testing.T) {
	const T, B = 3, 2
	m := newModel(t, shapes()["gru/2/dropout"])
	if _, err := m.NewSegment(0, B); err == nil {
		t.Error("a segment of no steps")
	}
	if _, err := m.NewEvaluator(T, 0); err == nil {
		t.Error("an evaluator of no lanes")
	}
	s := newSegment(t, m, T, B)
	for want, change := range map[string]func(*SegmentInput){
		"takes 6 inputs and targets, not 5 and 6": func(in *SegmentInput) {
			in.Inputs = in.Inputs[1:]
		},
		"takes 6 inputs and targets, not 6 and 0": func(in *SegmentInput) { in.Targets = nil },
		"2 lanes was given the numbers of 1": func(in *SegmentInput) {
			in.Lanes = in.Lanes[:1]
		},
		"input 4 is token 6; the vocabulary has 6": func(in *SegmentInput) {
			in.Inputs[4] = 6
		},
		"input 0 is token -1":  func(in *SegmentInput) { in.Inputs[0] = -1 },
		"target 5 is token 6":  func(in *SegmentInput) { in.Targets[5] = 6 },
		"target 1 is token -2": func(in *SegmentInput) { in.Targets[1] = -2 },
	} {
		in := randomInput(rand.New(rand.NewPCG(1, 2)), T, B, 6)
		change(&in)
		if _, err := s.Run(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if len(in.Lanes) == B {
			if _, _, err := s.Evaluate(in.Inputs, in.Targets); err == nil {
				t.Errorf("Evaluate took what Run says of: %s", want)
			}
		}
	}
	state := make([]float32, B*m.config.StateSize())
	if err := s.State(state); err != nil || slices.ContainsFunc(state,
		func(x float32) bool { return x != 0 }) {
		t.Errorf("the state is not zero after errors (%v)", err)
	}
	if s.State(state[1:]) == nil || s.SetState(state[1:]) == nil {
		t.Error("a state of the wrong length was taken")
	}
}

// TestLanesMayMove splits a batch of lanes, with their states, into two segments of other sizes and
// in another order. Each lane keeps its loss and state, dropout included, and the parts' gradients
// add up to the whole's.
func TestLanesMayMove(t *testing.T) {
	for name, cfg := range some(shapes()) {
		t.Run(name, func(t *testing.T) {
			const T, B = 3, 4
			m := newModel(t, cfg)
			rng := rand.New(rand.NewPCG(3, 3))
			whole := newSegment(t, m, T, B)
			run(t, whole, randomInput(rng, T, B, cfg.Vocab)) // makes a nonzero state
			size := cfg.StateSize()
			state := make([]float32, B*size)
			if err := whole.State(state); err != nil {
				t.Fatal(err)
			}
			in := randomInput(rng, T, B, cfg.Vocab)
			wantLoss := run(t, whole, in)
			wantGradient := download(m, m.Gradients())
			after := make([]float32, B*size)
			if err := whole.State(after); err != nil {
				t.Fatal(err)
			}

			loss, gradient := 0.0, make([]float64, len(wantGradient))
			for _, lanes := range [][]int{{2}, {3, 0, 1}} {
				part := newSegment(t, m, T, len(lanes))
				some := SegmentInput{Scale: in.Scale, Step: in.Step}
				var moved, want []float32
				for step := range T {
					for _, b := range lanes {
						some.Inputs = append(some.Inputs, in.Inputs[step*B+b])
						some.Targets = append(some.Targets, in.Targets[step*B+b])
					}
				}
				for _, b := range lanes {
					some.Lanes = append(some.Lanes, in.Lanes[b])
					moved = append(moved, state[b*size:(b+1)*size]...)
					want = append(want, after[b*size:(b+1)*size]...)
				}
				if err := part.SetState(moved); err != nil {
					t.Fatal(err)
				}
				loss += run(t, part, some)
				if err := part.State(moved); err != nil {
					t.Fatal(err)
				}
				if e := relative(moved, want); e > 1e-6 {
					t.Errorf("lanes %v: states differ by %.2g", lanes, e)
				}
				for i, x := range download(m, m.Gradients()) {
					gradient[i] += float64(x)
				}
			}
			if math.Abs(loss-wantLoss) > 1e-6*wantLoss {
				t.Errorf("loss %v in parts, %v as a whole", loss, wantLoss)
			}
			if e := relative(wantGradient, gradient); e > 1e-5 {
				t.Errorf("gradients differ by %.2g", e)
			}
		})
	}
}

// TestZeroState checks that a run after ZeroState equals a new segment's.
func TestZeroState(t *testing.T) {
	m := newModel(t, shapes()["lstm/2/one-hot"])
	in := randomInput(rand.New(rand.NewPCG(1, 2)), 3, 2, 6)
	s := newSegment(t, m, 3, 2)
	first := run(t, s, in)
	if second := run(t, s, in); second == first {
		t.Error("the state is not carried on")
	}
	s.ZeroState()
	if third := run(t, s, in); third != first {
		t.Errorf("loss %v after ZeroState, %v at first", third, first)
	}
}

// TestSmallestModels runs models with dimensions of one, which libraries tend to treat as scalars
// and vectors.
func TestSmallestModels(t *testing.T) {
	for _, cell := range compute.Cells() {
		for _, embed := range []int{0, 1, 2} {
			for _, V := range []int{1, 2} {
				c := Config{Cell: cell, Vocab: V, Hidden: 1, Layers: 2, Embed: embed,
					TieWeights: embed > 0, Dropout: 0.5}
				m := newModel(t, c)
				s := newSegment(t, m, 1, 1)
				in := SegmentInput{Inputs: []int32{0}, Targets: []int32{0}, Scale: 1,
					Lanes: []int{0}}
				want, _ := newTwin(m).loss(in, 1, 1, make([]float64, c.StateSize()), true)
				if loss := run(t, s, in); math.Abs(loss-want) > 1e-6 {
					t.Errorf("%v, V %d, E %d: loss %v, want %v", cell, V, embed, loss,
						want)
				}
			}
		}
	}
}

// TestNonFinite checks that a NaN loss is returned, without an error.
func TestNonFinite(t *testing.T) {
	m := newModel(t, shapes()["lstm/1/one-hot"])
	x, _, err := m.Param("output.bias")
	if err != nil {
		t.Fatal(err)
	}
	nan := []float32{0, 0, float32(math.NaN()), 0, 0, 0}
	m.dev.Upload(x, nan)
	in := randomInput(rand.New(rand.NewPCG(1, 2)), 3, 2, 6)
	if loss := run(t, newSegment(t, m, 3, 2), in); !math.IsNaN(loss) {
		t.Errorf("loss %v, want NaN", loss)
	}
	if sum := m.dev.SumSquares(m.Gradients()); !math.IsNaN(sum) {
		t.Errorf("the gradients' sum of squares is %v, want NaN", sum)
	}
}

// counting counts a device's open allocations and workspaces.
type counting struct {
	compute.Device
	open int
}

func (c *counting) Alloc(n int) []float32 { c.open += min(n, 1); return c.Device.Alloc(n) }
func (c *counting) Free(x []float32)      { c.open -= min(len(x), 1); c.Device.Free(x) }
func (c *counting) NewRecurrent(s compute.RecurrentShape, inference bool) compute.Recurrent {
	c.open++
	return countingRecurrent{c.Device.NewRecurrent(s, inference), c}
}
func (c *counting) NewOutput(s compute.OutputShape) compute.Output {
	c.open++
	return countingOutput{c.Device.NewOutput(s), c}
}

type countingRecurrent struct {
	compute.Recurrent
	device *counting
}

func (c countingRecurrent) Close() { c.device.open--; c.Recurrent.Close() }

type countingOutput struct {
	compute.Output
	device *counting
}

func (c countingOutput) Close() { c.device.open--; c.Output.Close() }

// TestCloseFreesEverything opens and uses everything, closes it twice, and counts what is left.
func TestCloseFreesEverything(t *testing.T) {
	for name, cfg := range some(shapes()) {
		cfg.Recompute = 2
		dev := &counting{Device: newDevice(t)}
		m, err := New(cfg, dev)
		if err != nil {
			t.Fatal(err)
		}
		s, err := m.NewSegment(3, 2)
		if err != nil {
			t.Fatal(err)
		}
		in := randomInput(rand.New(rand.NewPCG(1, 2)), 3, 2, cfg.Vocab)
		run(t, s, in)
		if _, _, err := s.Evaluate(in.Inputs, in.Targets); err != nil {
			t.Fatal(err)
		}
		g, err := m.NewGenerator(1)
		if err != nil {
			t.Fatal(err)
		}
		l, err := NewLayer(dev, "alone", cfg.layerShape(0, 3, 2), nil)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			l.Close()
			g.Close()
			s.Close()
		}
		m.Close()
		m.Close()
		if dev.open != 0 {
			t.Errorf("%s: %d things are still open", name, dev.open)
		}
	}
}

// TestModelsSideBySide trains models on separate devices in several goroutines. Gorgonia's package
// variables cause neither races nor other results.
func TestModelsSideBySide(t *testing.T) {
	const T, B, steps = 3, 2, 20
	train := func() ([]float64, error) {
		dev, err := cpu.New(cpu.Config{Threads: 1})
		if err != nil {
			return nil, err
		}
		defer dev.Close()
		m, err := New(shapes()["lstm/2/tied-projected"], dev)
		if err != nil {
			return nil, err
		}
		defer m.Close()
		rng := rand.New(rand.NewPCG(1, 2))
		var losses []float64
		for range steps {
			s, err := m.NewSegment(T, B) // anew, so that graphs are built all the time
			if err != nil {
				return nil, err
			}
			loss, err := s.Run(randomInput(rng, T, B, 6))
			if err != nil {
				return nil, err
			}
			s.Close()
			losses = append(losses, loss)
			dev.Update(compute.Update{LR: 0.5}, m.Params(), m.Gradients(), nil, nil)
		}
		return losses, nil
	}
	results := make([][]float64, 4)
	errs := make([]error, len(results))
	var group sync.WaitGroup
	for i := range results {
		group.Go(func() { results[i], errs[i] = train() })
	}
	group.Wait()
	for i, losses := range results {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if !slices.Equal(losses, results[0]) {
			t.Errorf("model %d: losses %v, model 0 has %v", i, losses, results[0])
		}
	}
}

// TestDropoutKey checks that every part of a key matters.
func TestDropoutKey(t *testing.T) {
	seen := map[uint64]string{}
	for seed := range uint64(4) {
		for step := range int64(4) {
			for layer := inputDropout; layer < 4; layer++ {
				for lane := range 4 {
					key := DropoutKey(seed, step, layer, lane)
					what := fmt.Sprint(seed, step, layer, lane)
					if other, ok := seen[key]; ok {
						t.Fatalf("%s and %s have the same key", what, other)
					}
					seen[key] = what
				}
			}
		}
	}
}

// TestLayerErrors expects an error for each invalid layer.
func TestLayerErrors(t *testing.T) {
	dev := newDevice(t)
	good := compute.RecurrentShape{Cell: compute.GRU, T: 2, B: 2, D: 3, H: 4}
	bad := good
	bad.T = 0
	odd := good
	odd.Cell = compute.Cell(len(compute.Cells()))
	for name, newLayer := range map[string]func() (*Layer, error){
		"no name":  func() (*Layer, error) { return NewLayer(dev, "", good, nil) },
		"no steps": func() (*Layer, error) { return NewLayer(dev, "a", bad, nil) },
		"no cell":  func() (*Layer, error) { return NewLayer(dev, "a", odd, nil) },
		"gradient": func() (*Layer, error) { return NewLayer(dev, "a", good, dev.Alloc(3)) },
	} {
		if _, err := newLayer(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
