package cpu

import (
	"math"

	"rondo/compute"
)

// Gemm computes c = alpha op(a) op(b) + beta c; op(a): [m, k], op(b): [k, n], c: [m, n].
// With beta zero, c is not read.
func (d *Device) Gemm(transA, transB bool, m, n, k int, alpha float32, a, b []float32,
	beta float32, c []float32) {
	compute.CheckGemm(m, n, k, a, b, c)
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
	compute.CheckBias(x, b)
	if len(x) > 0 {
		d.backend.addBias(x, b)
	}
}

// Embed gathers rows: y[i] = table[ids[i]]; table: [V, E], y: [N, E].
func (d *Device) Embed(y, table []float32, ids []int32) {
	if len(ids) == 0 {
		return
	}
	_, all := compute.CheckTable("Embed", table, y, len(ids))
	compute.CheckIDs("Embed", ids, all)
	d.backend.embed(y, table, ids)
}

// EmbedBackward adds dy's rows to dtable's: dtable[ids[i]] += dy[i], in the order of i.
func (d *Device) EmbedBackward(dtable, dy []float32, ids []int32) {
	if len(ids) == 0 {
		return
	}
	_, all := compute.CheckTable("EmbedBackward", dtable, dy, len(ids))
	compute.CheckIDs("EmbedBackward", ids, all)
	d.backend.embedBackward(dtable, dy, ids)
}

// Dropout sets y = x / (1-p) where compute.DropoutKeep keeps an element of x: [steps, B, H], and
// 0 elsewhere; B is len(keys).
func (d *Device) Dropout(y, x []float32, steps int, p float32, keys []uint64) {
	rows := compute.CheckDropout(y, x, steps, p, keys)
	if len(x) > 0 {
		d.backend.dropout(y, x, len(x)/rows, p, keys)
	}
}

// CopyRows copies or adds columns of src's rows ids to columns of dst's rows.
func (d *Device) CopyRows(dst, src compute.Columns, n, width int, ids []int32, add bool) {
	compute.CheckCopyRows(dst, src, n, width, ids)
	compute.CheckBelow("CopyRows", ids, src.Rows())
	if n*width > 0 {
		d.backend.copyRows(dst, src, n, width, ids, add)
	}
}

// Pool reduces the first lengths[b] steps of each row b of x: [steps, B, H] to y: [B, H].
func (d *Device) Pool(p compute.Pooling, y, x []float32, steps int, lengths []int32) {
	compute.CheckPool(p, y, x, steps, lengths)
	compute.CheckLengths(lengths, steps)
	if len(y) > 0 {
		d.backend.pool(p, y, x, lengths)
	}
}

// PoolBackward overwrites dx with the gradient of Pool's x.
func (d *Device) PoolBackward(p compute.Pooling, dx, dy, x, y []float32, steps int,
	lengths []int32) {
	compute.CheckPoolBackward(p, dx, dy, x, y, steps, lengths)
	compute.CheckLengths(lengths, steps)
	if len(dy) > 0 {
		d.backend.poolBackward(p, dx, dy, x, y, lengths)
	}
}

// Tanh sets x to tanh(x).
func (d *Device) Tanh(x []float32) { d.backend.tanh(x) }

// TanhBackward multiplies dy by tanh's derivative, 1 - y².
func (d *Device) TanhBackward(dy, y []float32) {
	compute.CheckSame("TanhBackward", len(dy), len(y))
	d.backend.tanhBackward(dy, y)
}

// Attend computes attention's weights and results.
func (d *Device) Attend(a compute.Attention) {
	a.Check()
	compute.CheckLengths(a.Lengths, a.S)
	d.backend.attend(a, nil, nil, nil, nil)
}

// AttendBackward overwrites dq, dk and dv with the gradients of attention's queries, keys and
// values.
func (d *Device) AttendBackward(a compute.Attention, dy, dq, dk, dv []float32) {
	a.CheckBackward(dy, dq, dk, dv)
	compute.CheckLengths(a.Lengths, a.S)
	d.backend.attend(a, dy, dq, dk, dv)
}

// LayerNorm normalises rows.
func (d *Device) LayerNorm(n compute.LayerNorm) {
	n.Check()
	d.backend.layerNorm(n, nil, nil, nil, nil)
}

// LayerNormBackward overwrites dx, dw and db with the gradients of a layer normalisation.
func (d *Device) LayerNormBackward(n compute.LayerNorm, dy, dx, dw, db []float32) {
	n.CheckBackward(dy, dx, dw, db)
	d.backend.layerNorm(n, dy, dx, dw, db)
}

// SumSquares returns the sum of squares, accumulated in float64 in the order of the contract.
func (d *Device) SumSquares(x []float32) float64 { return d.backend.sumSquares(x) }

// Scale multiplies x by a.
func (d *Device) Scale(x []float32, a float32) { d.backend.scale(x, a) }

// Add adds x to y.
func (d *Device) Add(y, x []float32) {
	compute.CheckSame("Add", len(y), len(x))
	d.backend.add(y, x)
}

// Update applies the optimizer to all parameters in one pass.
func (d *Device) Update(u compute.Update, params, grads, s1, s2 []float32) {
	u.Check(params, grads, s1, s2)
	if len(params) > 0 {
		size, root := u.Correction()
		d.backend.update(u, correction{size, root}, params, grads, s1, s2)
	}
}

// clipper computes the norm within Clip.
type clipper struct {
	device *Device
	norm   float64 // of the last Clip; not finite if it has changed nothing
}

// NewClipper makes a clipper.
func (d *Device) NewClipper() compute.Clipper { return &clipper{device: d} }

// Clip limits g by its norm, or by value, and multiplies it by a share.
func (c *clipper) Clip(g []float32, by *compute.Clip, loss *compute.Loss) {
	by.Check()
	b := c.device.backend
	c.norm = math.Sqrt(b.sumSquares(g))
	if loss != nil && !(math.Abs(loss.Sum()) < by.LossLimit) {
		c.norm = math.NaN()
	}
	if !c.sound() {
		return
	}
	if by.ByValue && by.Limit > 0 {
		b.clamp(g, float32(by.Limit))
	}
	if factor := by.Factor(c.norm); factor != 1 {
		b.scale(g, factor)
	}
}

// sound reports whether the last Clip's gradient may be used.
func (c *clipper) sound() bool { return !math.IsNaN(c.norm) && !math.IsInf(c.norm, 0) }

// Update applies the optimizer, unless the last Clip left its gradient unchanged.
func (c *clipper) Update(u *compute.Update, params, grads, s1, s2 []float32) {
	if c.sound() {
		c.device.Update(*u, params, grads, s1, s2)
	}
}

// Norm returns the norm of the last Clip.
func (c *clipper) Norm() float64 { return c.norm }

// Close has nothing to free.
func (c *clipper) Close() {}

// correction is the result of compute.Update.Correction.
type correction struct{ size, root float32 }
