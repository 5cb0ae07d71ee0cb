package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"rondo/compute"
	"rondo/compute/devicetest"
)

// named is one of a call's results.
type named struct {
	name   string
	values []float32
}

// outputCase is an output layer with what it reads.
type outputCase struct {
	name    string
	shape   compute.OutputShape
	rows    int // of logits at once
	x, w, b []float64
	targets []int32
}

// newOutputCase has logits of about one size, however long its rows are: where a target's
// probability is all but 1, p - 1 cancels, and float32 has no digits left to compare.
func newOutputCase(s compute.OutputShape, rows int, bias bool, random *rand.Rand) outputCase {
	values := func(n int, size float64) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = float64(float32(size * (2*random.Float64() - 1)))
		}
		return x
	}
	c := outputCase{fmt.Sprintf("%+v rows=%d bias=%t", s, rows, bias), s, rows,
		values(s.N*s.H, 2), values(s.V*s.H, 2/math.Sqrt(float64(s.H))), values(s.V, 1),
		make([]int32, s.N)}
	if !bias {
		c.b = nil
	}
	for i := range c.targets {
		c.targets[i] = int32(random.IntN(s.V+1)) - 1
	}
	return c
}

// outputCases are random shapes, in one and in several chunks of rows, with and without a bias.
func outputCases(random *rand.Rand) []outputCase {
	var all []outputCase
	for trial := range 24 {
		s := compute.OutputShape{N: 1 + random.IntN(67), H: 1 + random.IntN(67),
			V: 1 + random.IntN(67)}
		rows := s.N
		if trial%2 == 0 {
			rows = 1 + random.IntN(s.N)
		}
		all = append(all, newOutputCase(s, rows, trial%3 != 0, random))
	}
	// More rows than one pass of a gradient takes, and more than one chunk of them.
	s := compute.OutputShape{N: 1500, H: 40, V: 70}
	return append(all, newOutputCase(s, s.N, true, random), newOutputCase(s, 700, true, random))
}

const outputScale = 0.5

// run returns the loss of Forward and of ForwardBackward, and the gradients.
func (c outputCase) run(d *Device) (losses [2]float64, gradients []named) {
	o := d.newOutput(c.shape, c.rows)
	defer o.Close()
	x, w, b := narrow(d, c.x), narrow(d, c.w), narrow(d, c.b)
	dx, dw, db := junk(d, len(x)), junk(d, len(w)), junk(d, len(b))
	if b == nil {
		db = nil
	}
	o.Forward(x, w, b, c.targets)
	losses[0] = o.Sum()
	o.ForwardBackward(x, w, b, c.targets, outputScale, dx, dw, db)
	losses[1] = o.Sum()
	return losses, []named{{"dx", dx}, {"dw", dw}, {"db", db}}
}

// solve runs the reference in float64, its operands rounded to the precision.
func (c outputCase) solve(p compute.Precision) (losses [2]float64, gradients [][]float64) {
	dx, dw := make([]float64, len(c.x)), make([]float64, len(c.w))
	var db []float64
	if c.b != nil {
		db = make([]float64, len(c.b))
	}
	o := newRefHead(c.shape, plainRows[float64](p), c.rows)
	losses[0] = o.run(c.x, c.w, c.b, c.targets, outputScale, nil, nil, nil)
	losses[1] = o.run(c.x, c.w, c.b, c.targets, outputScale, dx, dw, db)
	return losses, [][]float64{dx, dw, db}
}

// TestOutput holds the output layer against the reference. The operands of its logits are given, so
// that the loss is as exact in bf16 as in fp32.
func TestOutput(t *testing.T) { checkOutputs(t, outputCases(newRandom(t))) }

// outputProblem is an output layer with all that it reads, and what it is to give.
type outputProblem interface {
	title() string
	solve(compute.Precision) (losses [2]float64, gradients [][]float64)
	run(*Device) (losses [2]float64, gradients []named)
}

func (c outputCase) title() string { return c.name }

func checkOutputs[P outputProblem](t *testing.T, all []P) {
	t.Helper()
	for _, precision := range precisions {
		losses, gradients := make([][2]float64, len(all)), make([][][]float64, len(all))
		for i, c := range all {
			losses[i], gradients[i] = c.solve(precision)
		}
		onDevicesOf(t, precision, func(t *testing.T, d *Device) {
			compared := devicetest.NewComparison(t, devicetest.BoundsOf(precision))
			for i, c := range all {
				got, tensors := c.run(d)
				for k, want := range losses[i] {
					if e := math.Abs(got[k] - want); !(e <= 1e-5*(1+want)) {
						t.Errorf("%s: loss %v, want %v", c.title(), got[k], want)
					}
				}
				for j, tensor := range tensors {
					compared.Tensor(c.title(), tensor.name, tensor.values, gradients[i][j])
				}
			}
			compared.End()
		})
	}
}
