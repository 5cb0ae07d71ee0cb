package cpu

import (
	"math"
	"testing"

	"rondo/compute"
)

// Bounds of a device's error against the reference in float64 over operands rounded as its are.
//
// deviceTolerance bounds every element's, as a share of the tensor's largest value. In fp32 it is
// float32's rounding over the longest sums here. In bf16 the reference rounds the same values but
// for float32's rounding, so that some fall to the other side of a boundary: such a one is off by
// 2^-8 of itself, and so is what it decides.
//
// shareTolerance bounds what is no accident: the mean, over all problems of a test, of a tensor's
// root-mean-square error as a share of its root-mean-square. Measured in bf16 over up to 70 steps:
// at most 7e-5, but 9e-4 and more where an operand is not rounded.
func deviceTolerance(p compute.Precision) float64 {
	if p == compute.BF16 {
		return 0x1p-7
	}
	return 2e-5
}

func shareTolerance(p compute.Precision) float64 {
	if p == compute.BF16 {
		return 2.5e-4
	}
	return 2e-6
}

// comparison holds a device's results against the reference's.
type comparison struct {
	t         *testing.T
	precision compute.Precision
	shares    map[string]*share // by the tensor's name
}

// share is the sum of n errors as shares of what they are errors of.
type share struct {
	sum float64
	n   int
}

func newComparison(t *testing.T, p compute.Precision) *comparison {
	return &comparison{t: t, precision: p, shares: map[string]*share{}}
}

// tensor compares one of a problem's.
func (c *comparison) tensor(problem, name string, got []float32, want []float64) {
	c.t.Helper()
	if len(got) != len(want) {
		c.t.Fatalf("%s %s has %d elements, want %d", problem, name, len(got), len(want))
	}
	largest, worst, at := 1e-3, 0.0, 0
	var errors, squares float64
	for i, v := range want {
		off := math.Abs(float64(got[i]) - v)
		largest = math.Max(largest, math.Abs(v))
		if e := worse(worst, off); e > worst {
			worst, at = e, i
		}
		errors, squares = errors+off*off, squares+v*v
	}
	if worst > deviceTolerance(c.precision)*largest {
		c.t.Errorf("%s %s[%d] of %d is %g, want %g: error %.2g of %.2g", problem, name, at,
			len(got), got[at], want[at], worst, largest)
	}
	if squares == 0 {
		return // nothing to be a share of
	}
	if c.shares[name] == nil {
		c.shares[name] = &share{}
	}
	c.shares[name].sum += math.Sqrt(errors / squares)
	c.shares[name].n++
}

// end compares the shares. It logs the worst.
func (c *comparison) end() {
	c.t.Helper()
	worst, of := 0.0, ""
	for name, s := range c.shares {
		mean := s.sum / float64(s.n)
		if mean >= worst {
			worst, of = mean, name
		}
		if !(mean <= shareTolerance(c.precision)) {
			c.t.Errorf("%s: mean error %.2g of its size over %d problems, want at most %.2g", name,
				mean, s.n, shareTolerance(c.precision))
		}
	}
	c.t.Logf("largest mean error: %.2g of the size of %s", worst, of)
}
