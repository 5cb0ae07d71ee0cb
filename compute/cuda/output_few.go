//go:build cuda

package cuda

import (
	"unsafe"

	"rondo/compute"
)

// fewTokens is an output layer of few tokens, for which kernels/few.cu keeps the logits of some
// rows in a multiprocessor: two launches make everything. Its zero value is one that does not fit.
type fewTokens struct {
	chunk  int // columns of H at once
	shared int // bytes of shared memory a block
}

const (
	fewRows    = 8 // rows of a block
	fewThreads = 256
	fewMost    = 128 // tokens
	// fewShared is a block's limit of shared memory: most GPUs' multiprocessors have room for two
	// or more such blocks.
	fewShared = 96 << 10
	// fewParts bounds the parts of dw, one for each block, to the L2 cache of a large GPU. With
	// more rows or weights, products take less time than moving the parts.
	fewParts = 16 << 20
	// fewStep is the unit of a chunk's length: four quarters of four columns. fewChunk is the
	// longest chunk: four columns for each of a block's threads.
	fewStep, fewChunk = 16, 4 * fewThreads
)

// chooseFew plans a layer with few tokens and not too many rows, in blocks of at most shared bytes
// of shared memory.
func chooseFew(s compute.OutputShape, shared int) fewTokens {
	if s.V > fewMost {
		return fewTokens{}
	}
	f := fewTokens{chunk: min(blocksFor(s.H, fewStep)*fewStep, fewChunk)}
	most := min(shared, fewShared)
	for f.chunk > fewStep && fewBytes(s.V, f.chunk) > most {
		f.chunk -= fewStep
	}
	f.shared = fewBytes(s.V, f.chunk)
	if f.shared > most || f.partBytes(s) > fewParts {
		return fewTokens{}
	}
	return f
}

// fewBytes is the shared memory of a block: the tiles of x and w, the logits' sums in four parts,
// their gradient twice, and a float64 a row.
func fewBytes(V, chunk int) int {
	return 8*fewRows + 4*((fewRows+V)*(chunk+4)+(4+2)*fewRows*V)
}

func (f fewTokens) fits() bool { return f.chunk > 0 }

// width is how many float32s the part of a block is: dw's, whose rows are padded to whole fours,
// and db's.
func (f fewTokens) width(s compute.OutputShape) int {
	return s.V*blocksFor(s.H, 4)*4 + blocksFor(s.V, 4)*4
}

// partBytes is how much memory the parts of all blocks take.
func (f fewTokens) partBytes(s compute.OutputShape) int {
	return 4 * blocksFor(s.N, fewRows) * f.width(s)
}

// runFew enqueues all of it.
func (o *output) runFew(x, w, b []float32, ids unsafe.Pointer, to *gradientsOut) {
	s, d := o.shape, o.device
	blocks := blocksFor(s.N, fewRows)
	l := across(blocks, fewThreads)
	l.shared = o.few.shared
	arguments := []any{int32(s.N), int32(s.H), int32(s.V), int32(o.few.chunk), x, w, b, ids,
		int32(d.gemm.forward()), o.losses}
	if to == nil {
		d.queue.launch("head_few_loss", l, arguments...)
		sumDoubles(&d.queue, o.sum, o.result, o.losses, blocks)
		return
	}
	d.queue.launch("head_few_gradient", l, append(arguments, to.scale, s.Smoothing,
		int32(d.gemm.backward()), to.dx, o.parts)...)
	sum := across(1+blocksFor(o.few.width(s), columnWidth), columnWidth*columnParts)
	sum.shared = columnSumBytes
	d.queue.launch("head_few_sum", sum, int32(blocks), int32(s.H), int32(s.V), o.parts, o.losses,
		to.dw, to.db, o.sum, o.result.place())
}
