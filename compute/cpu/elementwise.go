package cpu

import (
	"fmt"
	"math"

	"rondo/compute"
)

// Gemm computes c = alpha op(a) op(b) + beta c; op(a): [m, k], op(b): [k, n], c: [m, n].
// With beta zero, what c held does not matter.
func (d *Device) Gemm(transA, transB bool, m, n, k int, alpha float32, a, b []float32,
	beta float32, c []float32) {
	wantLength("Gemm's a", len(a), m*k)
	wantLength("Gemm's b", len(b), k*n)
	wantLength("Gemm's c", len(c), m*n)
	if m == 0 || n == 0 {
		return
	}
	switch {
	case k > 0:
		d.backend.gemm(transA, transB, m, n, k, alpha, a, b, beta, c)
		d.grown()
	case beta == 0:
		clear(c)
	default:
		d.backend.scale(c, beta)
	}
}

// AddBias adds b: [n] to every row of x: [m, n].
func (d *Device) AddBias(x, b []float32) {
	if len(b) == 0 || len(x)%len(b) != 0 {
		panic(fmt.Sprintf("cpu: AddBias of %d elements to rows in %d", len(b), len(x)))
	}
	if len(x) > 0 {
		d.backend.addBias(x, b)
	}
}

// Embed gathers rows: y[i] = table[ids[i]]; table: [V, E], y: [N, E].
func (d *Device) Embed(y, table []float32, ids []int32) {
	if len(ids) == 0 {
		return
	}
	width := len(y) / len(ids)
	wantLength("Embed's y", len(y), len(ids)*width)
	checkTable("Embed", table, width, ids)
	d.backend.embed(y, table, ids)
}

// EmbedBackward adds dy's rows to dtable's: dtable[ids[i]] += dy[i], in the order of i.
func (d *Device) EmbedBackward(dtable, dy []float32, ids []int32) {
	if len(ids) == 0 {
		return
	}
	width := len(dy) / len(ids)
	wantLength("EmbedBackward's dy", len(dy), len(ids)*width)
	checkTable("EmbedBackward", dtable, width, ids)
	d.backend.embedBackward(dtable, dy, ids)
}

// checkTable panics unless table is rows of this width and every id is one of them.
func checkTable(what string, table []float32, width int, ids []int32) {
	if width == 0 || len(table)%width != 0 {
		panic(fmt.Sprintf("cpu: %s: %d elements are not rows of %d", what, len(table), width))
	}
	checkIDs(what, ids, len(table)/width)
}

// checkIDs panics unless every id is in [0, limit).
func checkIDs(what string, ids []int32, limit int) {
	for i, id := range ids {
		if uint(id) >= uint(limit) {
			panic(fmt.Sprintf("cpu: %s: id %d at %d is not in [0, %d)", what, id, i, limit))
		}
	}
}

// Dropout sets y = x / (1-p) where compute.DropoutKeep keeps an element of x: [steps, B, H], and
// 0 elsewhere; B is len(keys).
func (d *Device) Dropout(y, x []float32, steps int, p float32, keys []uint64) {
	sameLength("Dropout", len(y), len(x))
	if !(p >= 0 && p <= 1) {
		panic(fmt.Sprintf("cpu: Dropout with probability %v, not in [0, 1]", p))
	}
	rows := steps * len(keys)
	if rows < 1 || len(x)%rows != 0 {
		panic(fmt.Sprintf("cpu: Dropout of %d elements in %d steps of %d lanes",
			len(x), steps, len(keys)))
	}
	if len(x) > 0 {
		d.backend.dropout(y, x, len(x)/rows, p, keys)
	}
}

// SumSquares returns the sum of squares, accumulated in float64 in the order of the contract.
func (d *Device) SumSquares(x []float32) float64 { return d.backend.sumSquares(x) }

// Scale multiplies x by a.
func (d *Device) Scale(x []float32, a float32) { d.backend.scale(x, a) }

// Clamp limits x to [-limit, limit]; NaN stays NaN.
func (d *Device) Clamp(x []float32, limit float32) {
	if !(limit >= 0) {
		panic(fmt.Sprintf("cpu: Clamp to a limit of %v", limit))
	}
	d.backend.clamp(x, limit)
}

// Add adds x to y.
func (d *Device) Add(y, x []float32) {
	sameLength("Add", len(y), len(x))
	d.backend.add(y, x)
}

// Update applies the optimizer to all parameters in one pass.
func (d *Device) Update(u compute.Update, params, grads, s1, s2 []float32) {
	slots := u.Optimizer.Slots()
	sameLength("Update's gradients", len(params), len(grads))
	if slots >= 1 {
		sameLength("Update's first slot", len(params), len(s1))
	}
	if slots >= 2 {
		sameLength("Update's second slot", len(params), len(s2))
		if u.Step < 1 {
			panic(fmt.Sprintf("cpu: Update %d of Adam; the first is 1", u.Step))
		}
	}
	if len(params) > 0 {
		d.backend.update(u, biasCorrection(u), params, grads, s1, s2)
	}
}

// correction is Adam's: the step's size lr/(1-beta1^step), and 1/sqrt(1-beta2^step), by which
// sqrt of the second moment is multiplied.
type correction struct{ size, root float32 }

// biasCorrection computes it in float64, once for all parameters.
func biasCorrection(u compute.Update) correction {
	if u.Optimizer.Slots() < 2 {
		return correction{}
	}
	first := 1 - math.Pow(float64(u.Beta1), float64(u.Step))
	second := 1 - math.Pow(float64(u.Beta2), float64(u.Step))
	return correction{
		size: float32(float64(u.LR) / first),
		root: float32(1 / math.Sqrt(second)),
	}
}
