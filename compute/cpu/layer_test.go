package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"rondo/compute"
)

// named is one of a call's results.
type named struct {
	name   string
	values []float32
}

// layerCase is a problem, and whether the gradient flows in from the state after the segment.
type layerCase struct {
	name string
	*problem
	withDout bool
}

func newLayerCase(s compute.RecurrentShape, dense, withDout bool, random *rand.Rand) layerCase {
	c := layerCase{fmt.Sprintf("%+v dense=%t dout=%t", s, dense, withDout),
		newProblem(s, dense, random), withDout}
	if !withDout {
		clear(c.dout.h)
		clear(c.dout.c)
	}
	return c
}

// layerCases are every cell in random shapes around the sizes of blocks and tiles, and in whole
// blocks.
func layerCases(random *rand.Rand) []layerCase {
	var all []layerCase
	for trial := range 40 {
		s := compute.RecurrentShape{Cell: cells[trial%len(cells)].cell,
			T: 1 + random.IntN(12), B: 1 + random.IntN(67), D: 1 + random.IntN(67),
			H: 1 + random.IntN(67)}
		dense := random.IntN(2) == 0
		switch {
		case trial >= 35: // more tokens in the vocabulary than in the segment
			s.T, s.B, s.D, dense = 1+random.IntN(4), 1+random.IntN(9), 300, false
		case trial >= 30: // more rows than one chunk of input
			s.T, s.B, s.D, s.H = 9, 16, 64, 64
		}
		all = append(all, newLayerCase(s, dense, random.IntN(2) == 0, random))
	}
	return all
}

// longCases sum a weight's gradient over more rows than one pass takes.
func longCases(random *rand.Rand) []layerCase {
	s := compute.RecurrentShape{Cell: compute.GRU, T: 70, B: 23, D: 5, H: 33}
	return []layerCase{newLayerCase(s, true, false, random),
		newLayerCase(s, false, false, random)}
}

// inputs are a case's arguments in device memory.
type inputs struct {
	w           compute.RecurrentWeights
	in          compute.RecurrentInput
	state, dout compute.RecurrentState
	dy          []float32
}

func (c layerCase) inputs(d *Device) inputs {
	i := inputs{in: compute.RecurrentInput{IDs: c.in.ids, X: narrow(d, c.in.x)},
		w: compute.RecurrentWeights{IH: narrow(d, c.w.ih), HH: narrow(d, c.w.hh),
			BiasIH: narrow(d, c.w.biasIH), BiasHH: narrow(d, c.w.biasHH)},
		state: compute.RecurrentState{H: narrow(d, c.state.h), C: narrow(d, c.state.c)},
		dy:    narrow(d, c.dy)}
	if c.withDout {
		i.dout = compute.RecurrentState{H: narrow(d, c.dout.h), C: narrow(d, c.dout.c)}
	}
	return i
}

// run computes everything that a layer can: twice, the second time on a used workspace; once
// without what is optional; and forward alone.
func (c layerCase) run(d *Device) []named {
	i := c.inputs(d)
	likeState := func() compute.RecurrentState {
		return compute.RecurrentState{H: junk(d, len(c.state.h)), C: junk(d, len(c.state.c))}
	}
	likeWeights := func() compute.RecurrentWeights {
		return compute.RecurrentWeights{IH: junk(d, len(c.w.ih)), HH: junk(d, len(c.w.hh)),
			BiasIH: junk(d, len(c.w.biasIH)), BiasHH: junk(d, len(c.w.biasHH))}
	}
	out, dstate, y := likeState(), likeState(), junk(d, len(c.dy))
	dw, dx := likeWeights(), junk(d, len(c.in.x))
	layer := d.NewRecurrent(c.shape, false)
	defer layer.Close()
	for range 2 {
		layer.Forward(i.w, i.in, i.state, y, out)
		layer.Backward(i.dy, i.dout, dw, dx, dstate)
	}
	alone := likeWeights()
	layer.Forward(i.w, i.in, i.state, y, out)
	layer.Backward(i.dy, i.dout, alone, nil, compute.RecurrentState{})

	inference, again := d.NewRecurrent(c.shape, true), junk(d, len(c.dy))
	defer inference.Close()
	inference.Forward(i.w, i.in, i.state, again, i.state) // state out over state in
	return []named{{"y", y}, {"h_T", out.H}, {"c_T", out.C}, {"dIH", dw.IH}, {"dHH", dw.HH},
		{"dBiasIH", dw.BiasIH}, {"dBiasHH", dw.BiasHH}, {"dx", dx}, {"dh_0", dstate.H},
		{"dc_0", dstate.C}, {"dHH alone", alone.HH}, {"y of inference", again},
		{"h in place", i.state.H}, {"c in place", i.state.C}}
}

// wants are the reference's values of what run returns, in its order.
func (a answer) wants() [][]float64 {
	return [][]float64{a.y, a.out.h, a.out.c, a.dw.ih, a.dw.hh, a.dw.biasIH, a.dw.biasHH, a.dx,
		a.dstate.h, a.dstate.c, a.dw.hh, a.y, a.out.h, a.out.c}
}

// TestLayers holds every cell on every device against the reference: values, all gradients, dx,
// dstate, with and without dout.
func TestLayers(t *testing.T) {
	random := newRandom(t)
	checkLayers(t, layerCases(random))
}

func TestLongSegment(t *testing.T) {
	random := newRandom(t)
	checkLayers(t, longCases(random))
}

func checkLayers(t *testing.T, all []layerCase) {
	for _, precision := range precisions {
		var solved []answer
		for _, c := range all {
			solved = append(solved, c.solve(precision))
		}
		onDevicesOf(t, precision, func(t *testing.T, d *Device) {
			compared := newComparison(t, precision)
			for i, c := range all {
				want := solved[i].wants()
				for j, got := range c.run(d) {
					compared.tensor(c.name, got.name, got.values, want[j])
				}
			}
			compared.end()
		})
	}
}

// TestNaN puts one NaN into a weight; it must reach the output and the gradient.
func TestNaN(t *testing.T) {
	random := newRandom(t)
	onDevices(t, func(t *testing.T, d *Device) {
		for _, c := range cells {
			s := compute.RecurrentShape{Cell: c.cell, T: 3, B: 2, D: 3, H: 5}
			m := newStepModel(d, s, random)
			m.weights.HH[0] = float32(math.NaN())
			if loss := m.step(); !math.IsNaN(loss) {
				t.Errorf("%s: loss %v of a weight that is NaN", c.name, loss)
			}
			if sum := d.SumSquares(m.grads); !math.IsNaN(sum) {
				t.Errorf("%s: squared gradient %v of a weight that is NaN", c.name, sum)
			}
			m.close()
		}
	})
}
