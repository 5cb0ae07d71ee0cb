package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"rondo/compute"
)

// problem is one recurrent layer with every tensor that it reads, in float64, and a scalar loss:
// the inner product of y, h_T and c_T with fixed random directions, which are dy and dout.
type problem struct {
	shape       compute.RecurrentShape
	w           refWeights[float64]
	in          refInput[float64]
	state, dout refState[float64]
	dy          []float64
}

func newProblem(s compute.RecurrentShape, dense bool, random *rand.Rand) *problem {
	values := func(n int, size float64) []float64 {
		x := make([]float64, n)
		for i := range x { // float32 values, so that a float32 device gets the same problem
			x[i] = float64(float32(size * (2*random.Float64() - 1)))
		}
		return x
	}
	k, state := s.Cell.Gates()*s.H, s.B*s.H
	size := 1 / math.Sqrt(float64(s.H))
	p := &problem{shape: s, dy: values(s.T*state, 1),
		w: refWeights[float64]{values(k*s.D, size), values(k*s.H, size), values(k, size),
			values(k, size)},
		state: refState[float64]{h: values(state, 1)},
		dout:  refState[float64]{h: values(state, 1)}}
	if s.Cell == compute.LSTM {
		p.state.c, p.dout.c = values(state, 1), values(state, 1)
	}
	if dense {
		p.in.x = values(s.T*s.B*s.D, 1)
		return p
	}
	p.in.ids = make([]int32, s.T*s.B)
	for i := range p.in.ids {
		p.in.ids[i] = int32(random.IntN(s.D))
	}
	return p
}

// answer is all that a layer computes.
type answer struct {
	y      []float64
	out    refState[float64]
	dw     refWeights[float64]
	dx     []float64
	dstate refState[float64]
}

func (p *problem) newAnswer() answer {
	state := len(p.state.h)
	a := answer{y: make([]float64, len(p.dy)), dx: make([]float64, len(p.in.x)),
		out: refState[float64]{h: make([]float64, state), c: make([]float64, len(p.state.c))},
		dw: refWeights[float64]{make([]float64, len(p.w.ih)), make([]float64, len(p.w.hh)),
			make([]float64, len(p.w.biasIH)), make([]float64, len(p.w.biasHH))},
		dstate: refState[float64]{h: make([]float64, state),
			c: make([]float64, len(p.state.c))}}
	if p.in.x == nil {
		a.dx = nil
	}
	return a
}

// solve runs the reference in float64, its operands rounded to the precision: what remains between
// it and a device are the roundings of float32.
func (p *problem) solve(precision compute.Precision) answer {
	l, a := newRefLayer(p.shape, plainRows[float64](precision), false), p.newAnswer()
	l.forward(p.w, p.in, p.state, a.y, a.out)
	l.backward(p.w, p.in, p.dy, p.dout, a.dw, a.dx, a.dstate)
	return a
}

func (p *problem) loss() float64 {
	l, a := newRefLayer(p.shape, plainRows[float64](compute.FP32), true), p.newAnswer()
	l.forward(p.w, p.in, p.state, a.y, a.out)
	dot := plainRows[float64](compute.FP32).dot
	return dot(a.y, p.dy) + dot(a.out.h, p.dout.h) + dot(a.out.c, p.dout.c)
}

// TestGradients holds the reference's gradients against central differences in float64: error at
// most 1e-7 of the larger of 1 and the gradient.
func TestGradients(t *testing.T) {
	const step, tolerance = 1e-5, 1e-7
	random := rand.New(rand.NewPCG(3, 4))
	for _, c := range cells {
		for _, dense := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/dense=%t", c.name, dense), func(t *testing.T) {
				s := compute.RecurrentShape{Cell: c.cell, T: 4, B: 2, D: 3, H: 5}
				p := newProblem(s, dense, random)
				a := p.solve(compute.FP32)
				for _, v := range []struct {
					name   string
					at, dx []float64
				}{
					{"weight_ih", p.w.ih, a.dw.ih}, {"weight_hh", p.w.hh, a.dw.hh},
					{"bias_ih", p.w.biasIH, a.dw.biasIH}, {"bias_hh", p.w.biasHH, a.dw.biasHH},
					{"x", p.in.x, a.dx}, {"h_0", p.state.h, a.dstate.h},
					{"c_0", p.state.c, a.dstate.c},
				} {
					for i, x := range v.at {
						v.at[i] = x + step
						up := p.loss()
						v.at[i] = x - step
						down := p.loss()
						v.at[i] = x
						want := (up - down) / (2 * step)
						if e := math.Abs(v.dx[i] - want); !(e <= tolerance*math.Max(1, want)) {
							t.Errorf("%s[%d]: gradient %g, difference %g", v.name, i, v.dx[i], want)
						}
					}
				}
			})
		}
	}
}

// TestOutputGradients does the same for the output layer, with masked rows and chunks.
func TestOutputGradients(t *testing.T) {
	const step, tolerance, scale = 1e-5, 1e-8, 0.25
	random := rand.New(rand.NewPCG(5, 6))
	s := compute.OutputShape{N: 7, H: 4, V: 5}
	values := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = 2*random.Float64() - 1
		}
		return x
	}
	x, w, b := values(s.N*s.H), values(s.V*s.H), values(s.V)
	targets := []int32{0, 4, -1, 2, 3, 3, -1}
	o := newRefHead(s, plainRows[float64](compute.FP32), 3)
	dx, dw, db := values(len(x)), values(len(w)), values(len(b))
	o.run(x, w, b, targets, scale, dx, dw, db)
	for _, v := range []struct {
		name   string
		at, dx []float64
	}{{"x", x, dx}, {"w", w, dw}, {"b", b, db}} {
		for i, at := range v.at {
			v.at[i] = at + step
			up := o.run(x, w, b, targets, 1, nil, nil, nil)
			v.at[i] = at - step
			down := o.run(x, w, b, targets, 1, nil, nil, nil)
			v.at[i] = at
			want := scale * (up - down) / (2 * step)
			if e := math.Abs(v.dx[i] - want); !(e <= tolerance) {
				t.Errorf("%s[%d]: gradient %g, difference %g", v.name, i, v.dx[i], want)
			}
		}
	}
}
