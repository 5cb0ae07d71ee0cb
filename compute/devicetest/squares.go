package devicetest

import (
	"fmt"
	"math"

	"rondo/compute"
)

// squaresProblem is a compute.Squares with all that it reads, in float64.
type squaresProblem struct {
	shape      compute.OutputShape
	x, w, b    []float64
	values     []float64 // [rows, V]
	targets    []int32
	dx, dw, db []float64 // by central differences
	loss       float64
}

func newSquaresProblem(r *rig, s compute.OutputShape) *squaresProblem {
	rows := s.N + 2
	p := &squaresProblem{shape: s, x: normal(r.random, s.N*s.H, 1), w: normal(r.random, s.V*s.H, 1),
		b: normal(r.random, s.V, 1), values: normal(r.random, rows*s.V, 3),
		targets: ids(r.random, s.N, rows)}
	for n := range p.targets {
		if n%4 == 3 { // without a target
			p.targets[n] = -1
		}
	}
	p.loss = p.solve()
	for _, t := range []struct {
		of  []float64
		out *[]float64
	}{{p.x, &p.dx}, {p.w, &p.dw}, {p.b, &p.db}} {
		*t.out = p.slopes(t.of)
	}
	return p
}

// solve returns the sum over rows of the mean squared error of the columns.
func (p *squaresProblem) solve() (loss float64) {
	s := p.shape
	for n := range s.N {
		for v := range s.V {
			if p.targets[n] < 0 {
				continue
			}
			y := p.b[v]
			for h := range s.H {
				y += p.x[n*s.H+h] * p.w[v*s.H+h]
			}
			e := y - p.values[int(p.targets[n])*s.V+v]
			loss += e * e / float64(s.V)
		}
	}
	return loss
}

// slopes are the derivatives of outputScale times the loss. It is quadratic in each number, so that
// a large difference is exact.
func (p *squaresProblem) slopes(of []float64) (d []float64) {
	for i, v := range of {
		of[i] = v + 1
		above := p.solve()
		of[i] = v - 1
		d = append(d, outputScale*(above-p.solve())/2)
		of[i] = v
	}
	return d
}

// testSquares holds a compute.Squares against finite differences, and its loss against a Clipper's
// limit.
func testSquares(r *rig) {
	if r.precision != compute.FP32 {
		return // the roundings are those of Gemm
	}
	compared := NewComparison(r, BoundsOf(r.precision))
	clipper := r.dev.NewClipper()
	defer clipper.Close()
	for _, s := range []compute.OutputShape{{N: 1, H: 1, V: 1}, {N: 35, H: 20, V: 1},
		{N: 12, H: 9, V: 5}} {
		p, d := newSquaresProblem(r, s), r.dev
		name := fmt.Sprintf("%+v", s)
		negated := make([]float64, len(p.values))
		for i, v := range p.values {
			negated[i] = -v
		}
		q := compute.NewSquares(d, s, put(d, negated))
		x, w, b := put(d, p.x), put(d, p.w), put(d, p.b)
		dx, dw, db := junk(d, len(x)), junk(d, len(w)), junk(d, len(b))
		q.Forward(x, w, b, p.targets)
		forward := q.Sum()
		q.ForwardBackward(x, w, b, p.targets, outputScale, dx, dw, db)
		if forward != q.Sum() {
			r.Errorf("%s: Forward's sum is %v, ForwardBackward's %v", name, forward, q.Sum())
		}
		compared.loss(name, forward, p.loss)
		compared.Tensor(name, "dx", get(d, dx), p.dx)
		compared.Tensor(name, "dw", get(d, dw), p.dw)
		compared.Tensor(name, "db", get(d, db), p.db)
		for _, factor := range []float64{0.5, 2} {
			clipper.Clip(dw, &compute.Clip{Share: 1, LossLimit: factor * forward},
				&compute.Loss{Last: q})
			norm := clipper.Norm()
			if finite := !math.IsNaN(norm) && !math.IsInf(norm, 0); finite != (factor > 1) {
				r.Errorf("%s: a norm of %v with a limit of %v times the loss", name, norm, factor)
			}
		}
		q.Close()
	}
	compared.End()
}
