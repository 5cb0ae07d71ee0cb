package cpu

/*
#include "kernels/flat.h"
*/
import "C"

import (
	"fmt"
	"unsafe"

	"rondo/compute"
)

func (n *native) gemm(transA, transB bool, m, width, k int, alpha float32, a, b []float32,
	beta float32, c []float32) {
	//nolint:gocritic // what it sees is cgo's
	ok := C.rondo_gemm(n.kernels, n.team, &n.space, flag(transA), flag(transB), C.long(m),
		C.long(width), C.long(k), C.float(alpha), floats(a), floats(b), C.float(beta), floats(c))
	if ok == 0 {
		panic(&compute.MemoryError{
			What: fmt.Sprintf("the product of [%d, %d] and [%d, %d]", m, k, k, width)})
	}
}

func (n *native) add(y, x []float32) {
	C.rondo_add(n.kernels, n.team, C.long(len(x)), floats(y), floats(x))
}

func (n *native) addBias(x, b []float32) {
	C.rondo_add_bias(n.kernels, n.team, C.long(len(x)/len(b)), C.long(len(b)), floats(x),
		floats(b))
}

func (n *native) embed(y, table []float32, ids []int32) {
	C.rondo_embed(n.team, C.long(len(ids)), C.long(len(y)/len(ids)), floats(y), floats(table),
		ints(ids))
}

func (n *native) embedBackward(dtable, dy []float32, ids []int32) {
	C.rondo_embed_backward(n.kernels, n.team, C.long(len(ids)), C.long(len(dy)/len(ids)),
		floats(dtable), floats(dy), ints(ids))
}

func (n *native) scale(x []float32, a float32) {
	C.rondo_scale(n.kernels, n.team, C.long(len(x)), floats(x), C.float(a))
}

func (n *native) clamp(x []float32, limit float32) {
	C.rondo_clamp(n.kernels, n.team, C.long(len(x)), floats(x), C.float(limit))
}

func (n *native) sumSquares(x []float32) float64 {
	return float64(C.rondo_sum_squares(n.kernels, n.team, C.long(len(x)), floats(x)))
}

func (n *native) dropout(y, x []float32, h int, p float32, keys []uint64) {
	C.rondo_dropout(n.kernels, n.team, C.long(len(x)/h), C.long(len(keys)), C.long(h), floats(y),
		floats(x), C.float(p), (*C.uint64_t)(unsafe.SliceData(keys)))
}

// columns points to the first of the columns.
func columns(c compute.Columns) *C.float { return floats(c.X[min(c.At, len(c.X)):]) }

func (n *native) copyRows(dst, src compute.Columns, rows, width int, ids []int32, add bool) {
	C.rondo_copy_rows(n.kernels, n.team, C.long(rows), C.long(width), columns(dst),
		C.long(dst.Stride), columns(src), C.long(src.Stride), ints(ids), flag(add))
}

func (n *native) pool(p compute.Pooling, y, x []float32, lengths []int32) {
	C.rondo_pool(n.kernels, n.team, C.int(p), C.long(len(lengths)), C.long(len(y)/len(lengths)),
		floats(y), floats(x), ints(lengths))
}

func (n *native) poolBackward(p compute.Pooling, dx, dy, x, y []float32, lengths []int32) {
	C.rondo_pool_backward(n.kernels, n.team, C.int(p), C.long(len(dx)/len(dy)),
		C.long(len(lengths)), C.long(len(dy)/len(lengths)), floats(dx), floats(dy), floats(x),
		floats(y), ints(lengths))
}

func (n *native) tanh(x []float32) { n.tanhBackward(x, nil) }

func (n *native) tanhBackward(dy, y []float32) {
	C.rondo_tanh(n.kernels, n.team, C.long(len(dy)), floats(dy), floats(y))
}

func (n *native) attend(a compute.Attention, dy, dq, dk, dv []float32) {
	with := C.struct_attention{T: C.long(a.T), S: C.long(a.S), B: C.long(a.B), H: C.long(a.H),
		W: C.long(a.W), q: floats(a.Q), k: floats(a.K), v: floats(a.V),
		weights: floats(a.Weights), y: floats(a.Y), dy: floats(dy), dq: floats(dq),
		dk: floats(dk), dv: floats(dv)}
	C.rondo_attend(n.kernels, n.team, with, ints(a.Lengths))
}

func (n *native) layerNorm(l compute.LayerNorm, dy, dx, dw, db []float32) {
	with := C.struct_layer_norm{rows: C.long(l.Rows()), width: C.long(len(l.Weight)),
		x: floats(l.X), weight: floats(l.Weight), bias: floats(l.Bias), stats: floats(l.Stats),
		y: floats(l.Y), dy: floats(dy), dx: floats(dx), dw: floats(dw), db: floats(db)}
	C.rondo_layer_norm(n.kernels, n.team, with)
}

func (n *native) update(u compute.Update, c correction, params, grads, s1, s2 []float32) {
	beta2, rho := u.Decays()
	with := C.struct_update{optimizer: C.int(u.Optimizer), lr: C.float(u.LR),
		momentum: C.float(u.Momentum), beta1: C.float(u.Beta1), beta2: C.float(beta2),
		rho: C.float(rho), epsilon: C.float(u.Epsilon), decay: C.float(u.WeightDecay),
		size: C.float(c.size), root: C.float(c.root)}
	C.rondo_update(n.kernels, n.team, with, C.long(len(params)), floats(params), floats(grads),
		floats(s1), floats(s2))
}

// function runs one of the C kernels' functions, for tests.
func (n *native) function(f int, y, x []float32) {
	C.rondo_function(n.kernels, C.int(f), C.long(len(x)), floats(y), floats(x))
}
