//go:build !cgo

package cpu

import (
	"fmt"
	"unsafe"

	"gonum.org/v1/gonum/blas/gonum"

	"rondo/compute"
)

// alignment of Alloc's memory, in elements.
const alignElements = 16

// block is memory from allocate. The garbage collector frees it.
type block struct{}

func (block) release() {}

// allocate returns n zeros on a 64-byte boundary.
func allocate(n int) ([]float32, block) {
	x := make([]float32, n+alignElements-1)
	past := int(uintptr(unsafe.Pointer(&x[0])) / 4 % alignElements)
	first := (alignElements - past) % alignElements
	return x[first : first+n : first+n], block{}
}

// pure computes in Go, with the inner loops of gonum's BLAS, on the calling goroutine.
type pure struct {
	precision compute.Precision
	rows      rows[float32]
}

func newBackend(_ int, precision compute.Precision, isa string) (backend, error) {
	if isa != "" && isa != isaPortable {
		return nil, fmt.Errorf("cpu: %s is %q, but this build has no C kernels; unset it, or "+
			"build with CGO_ENABLED=1", isaEnvironment, isa)
	}
	return &pure{precision: precision, rows: gonumRows(precision)}, nil
}

func (*pure) close() {}

// bytes counts the rounded copies.
func (p *pure) bytes() int64 {
	if p.rows.round == nil {
		return 0
	}
	return 4 * int64(cap(p.rows.round.a)+cap(p.rows.round.b))
}

// gonumRows are gonum's dot and axpy, which are in assembly on amd64.
func gonumRows(p compute.Precision) rows[float32] {
	var b gonum.Implementation
	return rows[float32]{
		dot:   func(x, y []float32) float32 { return b.Sdot(len(x), x, 1, y, 1) },
		axpy:  func(a float32, x, y []float32) { b.Saxpy(len(x), a, x, 1, y, 1) },
		round: newRounding[float32](p),
	}
}

func (p *pure) name() string {
	if p.precision == compute.BF16 {
		return "pure Go, slower: built without cgo; bf16 emulated, slower than fp32"
	}
	return "pure Go, slower: built without cgo"
}

// multiply adds multiples of one short vector to another.
func (p *pure) multiply(rounds int) float64 {
	const length = 256
	var x, y [length]float32
	for range rounds {
		p.rows.axpy(0.5, x[:], y[:])
	}
	return 2 * length * float64(rounds)
}

func (p *pure) newLayer(s compute.RecurrentShape, inference bool) layer {
	return pureLayer{newRefLayer(s, p.rows, inference, func(n int) []float32 {
		return make([]float32, n)
	})}
}

func (p *pure) newHead(s compute.OutputShape, rows int) head {
	return pureHead{newRefHead(s, p.rows, max(rows, 1))} // with rows 0, one row at a time
}

func (p *pure) gemm(transA, transB bool, m, n, k int, alpha float32, a, b []float32,
	beta float32, c []float32) {
	if beta == 0 {
		clear(c)
	}
	p.rows.gemm(transA, transB, m, n, k, alpha, a, b, beta, c)
}

func (p *pure) add(y, x []float32)                  { p.rows.axpy(1, x, y) }
func (*pure) addBias(x, b []float32)                { addRow(x, b) }
func (*pure) scale(x []float32, a float32)          { refScale(x, a) }
func (*pure) clamp(x []float32, limit float32)      { refClamp(x, limit) }
func (*pure) sumSquares(x []float32) float64        { return refSumSquares(x) }
func (*pure) embed(y, table []float32, ids []int32) { refEmbed(y, table, ids) }
func (*pure) embedBackward(dtable, dy []float32, ids []int32) {
	refEmbedBackward(dtable, dy, ids)
}
func (*pure) dropout(y, x []float32, h int, p float32, keys []uint64) {
	refDropout(y, x, h, p, keys)
}
func (*pure) copyRows(dst, src compute.Columns, n, width int, ids []int32, add bool) {
	refCopyRows(dst, src, n, width, ids, add)
}
func (*pure) pool(p compute.Pooling, y, x []float32, lengths []int32) {
	refPool(p, y, x, lengths)
}
func (*pure) poolBackward(p compute.Pooling, dx, dy, x, y []float32, lengths []int32) {
	refPoolBackward(p, dx, dy, x, y, lengths)
}
func (*pure) tanh(x []float32)             { refTanh(x) }
func (*pure) tanhBackward(dy, y []float32) { refTanhBackward(dy, y) }
func (*pure) attend(a compute.Attention, dy, dq, dk, dv []float32) {
	if dy == nil {
		refAttend(a)
	} else {
		refAttendBackward(a, dy, dq, dk, dv)
	}
}
func (*pure) layerNorm(n compute.LayerNorm, dy, dx, dw, db []float32) {
	if dy == nil {
		refLayerNorm(n)
	} else {
		refLayerNormBackward(n, dy, dx, dw, db)
	}
}
func (*pure) update(u compute.Update, c correction, params, grads, s1, s2 []float32) {
	refUpdate(u, c, params, grads, s1, s2)
}

// pureLayer is the reference layer in float32.
type pureLayer struct{ ref *refLayer[float32] }

func pureWeights(w compute.RecurrentWeights) refWeights[float32] {
	return refWeights[float32]{w.IH, w.HH, w.BiasIH, w.BiasHH, w.Peephole}
}

func (l pureLayer) forward(w compute.RecurrentWeights, in compute.RecurrentInput,
	state compute.RecurrentState, y []float32, out compute.RecurrentState) {
	l.ref.forward(pureWeights(w),
		refInput[float32]{in.IDs, in.X, in.Lengths}, refState[float32]{state.H, state.C}, y,
		refState[float32]{out.H, out.C})
}

func (l pureLayer) backward(w compute.RecurrentWeights, in compute.RecurrentInput, dy []float32,
	dout compute.RecurrentState, dw compute.RecurrentWeights, dx []float32,
	dstate compute.RecurrentState, finished func(tensors, rows int)) {
	l.ref.backward(pureWeights(w),
		refInput[float32]{in.IDs, in.X, in.Lengths}, dy, refState[float32]{dout.H, dout.C},
		pureWeights(dw), dx,
		refState[float32]{dstate.H, dstate.C}, finished)
}

func (pureLayer) keep()  {}
func (pureLayer) close() {}

// whole is how much memory an allocation of so many bytes takes.
func whole(bytes int64) int64 { return bytes }

// layerBytes is of a layer's workspace, which has nothing of its input's.
func (Config) layerBytes(s compute.RecurrentShape, inference bool, _ input) (bytes int64) {
	newRefLayer(s, rows[float32]{}, inference, func(n int) []float32 {
		bytes += 4 * int64(n)
		return nil
	})
	return bytes
}

// headBytes is of an output layer's workspace that keeps so many rows' logits.
func (Config) headBytes(s compute.OutputShape, rows int) int64 {
	return 4 * int64(max(rows, 1)) * int64(s.V)
}

// gemmBytes is of the rounded copies.
func (c Config) gemmBytes(m, n, k int) int64 {
	if c.Precision == compute.FP32 {
		return 0
	}
	return 4 * int64(k) * int64(m+n)
}

// pureHead is the reference output layer in float32.
type pureHead struct{ ref *refHead[float32] }

func (h pureHead) forward(x, w, b []float32, targets []int32) float64 {
	return h.ref.run(x, w, b, targets, 1, nil, nil, nil)
}

func (h pureHead) forwardBackward(x, w, b []float32, targets []int32, scale float32,
	dx, dw, db []float32) float64 {
	return h.ref.run(x, w, b, targets, scale, dx, dw, db)
}

func (pureHead) close() {}
