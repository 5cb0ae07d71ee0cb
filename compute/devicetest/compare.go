package devicetest

import (
	"math"
	"testing"

	"rondo/compute"
)

// Bounds of a device's error against the oracle in float64, over operands that are rounded as the
// device's are.
type Bounds struct {
	// Element bounds the error of every element, as a share of its tensor's largest value.
	Element float64
	// Share bounds systematic errors: the mean, over all problems of a test, of a tensor's
	// root-mean-square error as a share of its root-mean-square.
	Share float64
	// Loss bounds a loss's error as a share of 1 and itself.
	Loss float64
}

// BoundsOf returns a precision's bounds.
//
// In fp32 they are float32's rounding over the longest sums here. In bf16 the oracle rounds the
// same values, without float32's rounding. So some values fall to the other side of a boundary:
// such a value is off by 2^-8 of itself, and so are the results that depend on it. Measured on a
// CPU over up to 70 steps, a share is at most 7e-5, but 9e-4 and more if an operand is not rounded.
// The gradients of fp16 are bf16's. In tf32 the oracle rounds to nearest, and a library may
// truncate: each operand is then off by up to 2^-10 of itself, and always towards zero.
func BoundsOf(p compute.Precision) Bounds {
	switch p {
	case compute.BF16, compute.FP16:
		return Bounds{Element: 0x1p-7, Share: 2.5e-4, Loss: 1e-5}
	case compute.TF32:
		return Bounds{Element: 0x1p-7, Share: 3e-3, Loss: 2e-3}
	}
	return Bounds{Element: 2e-5, Share: 2e-6, Loss: 1e-5}
}

// Comparison holds a device's results against the oracle's.
type Comparison struct {
	t      testing.TB
	bounds Bounds
	shares map[string]*share // by the tensor's name
}

// fewest is how many elements a tensor has whose error as a share counts.
const fewest = 16

// share is the sum of n relative errors.
type share struct {
	sum float64
	n   int
}

// NewComparison begins one.
func NewComparison(t testing.TB, b Bounds) *Comparison {
	return &Comparison{t: t, bounds: b, shares: map[string]*share{}}
}

// Tensor compares one of a problem's.
func (c *Comparison) Tensor(problem, name string, got []float32, want []float64) {
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
	if worst > c.bounds.Element*largest {
		c.t.Errorf("%s %s[%d] of %d is %g, want %g: error %.2g of %.2g", problem, name, at,
			len(got), got[at], want[at], worst, largest)
	}
	if squares == 0 || len(want) < fewest {
		return // nothing to be a share of, or so little that it may all nearly cancel
	}
	if c.shares[name] == nil {
		c.shares[name] = &share{}
	}
	c.shares[name].sum += math.Sqrt(errors / squares)
	c.shares[name].n++
}

// End compares the shares. It logs the worst.
func (c *Comparison) End() {
	c.t.Helper()
	worst, of := 0.0, ""
	for name, s := range c.shares {
		mean := s.sum / float64(s.n)
		if mean >= worst {
			worst, of = mean, name
		}
		if !(mean <= c.bounds.Share) {
			c.t.Errorf("%s: mean error %.2g of its size over %d problems, want at most %.2g", name,
				mean, s.n, c.bounds.Share)
		}
	}
	c.t.Logf("largest mean error: %.2g of the size of %s", worst, of)
}

// loss compares a problem's.
func (c *Comparison) loss(problem string, got, want float64) {
	c.t.Helper()
	if e := math.Abs(got - want); !(e <= c.bounds.Loss*(1+math.Abs(want))) {
		c.t.Errorf("%s: loss %v, want %v", problem, got, want)
	}
}

// worse is the larger error; NaN is the worst.
func worse(a, b float64) float64 {
	if math.IsNaN(a) || math.IsNaN(b) {
		return math.Inf(1)
	}
	return math.Max(a, b)
}

// SameBits wants the same bits; of a NaN, any NaN. It reports the first that differ.
func SameBits(t testing.TB, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s has %d elements, want %d", what, len(got), len(want))
	}
	for i, w := range want {
		if math.Float32bits(got[i]) != math.Float32bits(w) && (got[i] == got[i] || w == w) {
			t.Errorf("%s[%d] of %d is %x, want the bits of %x", what, i, len(want), got[i], w)
			return
		}
	}
}
