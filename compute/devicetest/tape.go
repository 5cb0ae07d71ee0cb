package devicetest

import (
	"math"

	"rondo/compute"
)

// value is a matrix of the oracle and the gradient of the loss with respect to it.
type value struct {
	rows, cols int
	v, g       []float64
}

func newValue(rows, cols int) *value {
	return &value{rows, cols, make([]float64, rows*cols), make([]float64, rows*cols)}
}

// given is a value that the problem has.
func given(v []float64, rows, cols int) *value {
	return &value{rows, cols, v, make([]float64, len(v))}
}

// part is rows of x.
func (x *value) part(first, rows int) *value {
	a, b := first*x.cols, (first+rows)*x.cols
	return &value{rows, x.cols, x.v[a:b], x.g[a:b]}
}

// tape computes in float64 and records the operations for reverse-mode automatic differentiation.
// Each operation's derivative stands beside it, so no cell's derivative is written by hand.
type tape struct {
	forward, backward func(float64) float64 // rounding of a product's operands
	undo              []func()              // each adds to the gradients of its operation's inputs
}

func newTape(p compute.Precision) *tape {
	t := &tape{forward: rounding(p, true), backward: rounding(p, false)}
	return t
}

// back walks back from the gradients that have been set.
func (t *tape) back() {
	for i := len(t.undo) - 1; i >= 0; i-- {
		t.undo[i]()
	}
}

// product is x w^T; x: [n, k], w: [m, k].
func (t *tape) product(x, w *value) *value {
	y := newValue(x.rows, w.rows)
	each := func(f func(at, a, b int)) { // the indices in y, x and w
		for i := range x.rows {
			for j := range w.rows {
				for p := range x.cols {
					f(i*w.rows+j, i*x.cols+p, j*x.cols+p)
				}
			}
		}
	}
	a, b := rounded(x.v, t.forward), rounded(w.v, t.forward)
	each(func(at, i, j int) { y.v[at] += a[i] * b[j] })
	t.undo = append(t.undo, func() {
		a, b, dy := rounded(x.v, t.backward), rounded(w.v, t.backward), rounded(y.g, t.backward)
		each(func(at, i, j int) {
			x.g[i] += dy[at] * b[j]
			w.g[j] += dy[at] * a[i]
		})
	})
	return y
}

// pick is the product of one-hot rows with w: [m, k], y[i] = w[:, ids[i]].
func (t *tape) pick(w *value, ids []int32) *value {
	y := newValue(len(ids), w.rows)
	each := func(f func(at, from int)) {
		for i, id := range ids {
			for r := range w.rows {
				f(i*w.rows+r, r*w.cols+int(id))
			}
		}
	}
	each(func(at, from int) { y.v[at] = w.v[from] })
	t.undo = append(t.undo, func() { each(func(at, from int) { w.g[from] += y.g[at] }) })
	return y
}

// columns are some of x's.
func (t *tape) columns(x *value, first, n int) *value {
	y := newValue(x.rows, n)
	each := func(f func(at, from int)) {
		for i := range y.v {
			f(i, i/n*x.cols+first+i%n)
		}
	}
	each(func(at, from int) { y.v[at] = x.v[from] })
	t.undo = append(t.undo, func() { each(func(at, from int) { x.g[from] += y.g[at] }) })
	return y
}

// add is x + sign*y, where y may be one row that is added to all.
func (t *tape) add(x, y *value, sign float64) *value {
	z := newValue(x.rows, x.cols)
	for i := range z.v {
		z.v[i] = x.v[i] + sign*y.v[i%len(y.v)]
	}
	t.undo = append(t.undo, func() {
		for i, g := range z.g {
			x.g[i] += g
			y.g[i%len(y.v)] += sign * g
		}
	})
	return z
}

// times is x ⊙ y, where y may be one row that multiplies all.
func (t *tape) times(x, y *value) *value {
	z := newValue(x.rows, x.cols)
	for i := range z.v {
		z.v[i] = x.v[i] * y.v[i%len(y.v)]
	}
	t.undo = append(t.undo, func() {
		for i, g := range z.g {
			x.g[i] += g * y.v[i%len(y.v)]
			y.g[i%len(y.v)] += g * x.v[i]
		}
	})
	return z
}

// choose has each row of x, or of y where other says so.
func (t *tape) choose(x, y *value, other []bool) *value {
	z := newValue(x.rows, x.cols)
	from := func(i int) *value {
		if other[i/x.cols] {
			return y
		}
		return x
	}
	for i := range z.v {
		z.v[i] = from(i).v[i]
	}
	t.undo = append(t.undo, func() {
		for i, g := range z.g {
			from(i).g[i] += g
		}
	})
	return z
}

// function is f(x), elementwise; slope is f' as a function of f's value.
func (t *tape) function(x *value, f, slope func(float64) float64) *value {
	y := newValue(x.rows, x.cols)
	for i, v := range x.v {
		y.v[i] = f(v)
	}
	t.undo = append(t.undo, func() {
		for i, g := range y.g {
			x.g[i] += g * slope(y.v[i])
		}
	})
	return y
}

func (t *tape) sigmoid(x *value) *value {
	return t.function(x, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) },
		func(y float64) float64 { return y * (1 - y) })
}

func (t *tape) tanh(x *value) *value {
	return t.function(x, math.Tanh, func(y float64) float64 { return 1 - y*y })
}

func (t *tape) relu(x *value) *value {
	return t.function(x, func(x float64) float64 { return math.Max(x, 0) },
		func(y float64) float64 {
			if y > 0 {
				return 1
			}
			return 0
		})
}

// crossEntropy is the summed cross-entropy of softmax(x) and (1-smoothing) onehot(target) +
// smoothing/V; back begins with the gradient of scale times that.
func (t *tape) crossEntropy(x *value, targets []int32, scale, smoothing float64) (loss float64) {
	for i, target := range targets {
		if target < 0 {
			continue
		}
		row, g := x.v[i*x.cols:(i+1)*x.cols], x.g[i*x.cols:(i+1)*x.cols]
		largest, sum := math.Inf(-1), 0.0
		for _, v := range row {
			largest = math.Max(largest, v)
		}
		for _, v := range row {
			sum += math.Exp(v - largest)
		}
		for j, v := range row {
			wanted := smoothing / float64(len(row))
			if j == int(target) {
				wanted += 1 - smoothing
			}
			g[j] = scale * (math.Exp(v-largest)/sum - wanted)
			loss += wanted * (math.Log(sum) + largest - v)
		}
	}
	return loss
}

func rounded(x []float64, round func(float64) float64) []float64 {
	if round == nil {
		return x
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = round(float64(float32(v))) // a device has float32 to round
	}
	return y
}

// rounding returns a precision's rounding of a product's operands; nil: none.
func rounding(p compute.Precision, forward bool) func(float64) float64 {
	switch {
	case p == compute.FP32:
		return nil
	case p == compute.TF32:
		return func(x float64) float64 { return roundTo(x, 11, -149, math.Inf(1)) }
	case p == compute.FP16 && forward:
		return func(x float64) float64 { return roundTo(x, 11, -24, 65504) }
	}
	return func(x float64) float64 { return roundTo(x, 8, -133, math.Inf(1)) }
}

// roundTo rounds to bits bits of significand, and to multiples of 2^least, to nearest, ties to
// even. Values above the largest become infinite.
func roundTo(x float64, bits, least int, largest float64) float64 {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return x
	}
	_, exponent := math.Frexp(x)
	unit := math.Ldexp(1, max(exponent-bits, least))
	if x = math.RoundToEven(x/unit) * unit; math.Abs(x) > largest {
		return math.Inf(int(math.Copysign(1, x)))
	}
	return x
}
