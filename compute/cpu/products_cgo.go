package cpu

/*
#include "kernels/products.h"
*/
import "C"

import "unsafe"

// blockWidth is the number of columns in a kernel's block.
const blockWidth = C.BLOCK

// products calls single kernels of products, for tests and benchmarks.
type products struct{ *native }

// operands are a product's operands in the kernels' layout: float32 or bfloat16.
type operands struct {
	memory []float32
	bf16   bool
}

// newOperands returns zeros, in C memory until the block is released.
func (n products) newOperands(count int) (operands, block) {
	bf16 := n.kernels.bf16 != 0
	if bf16 {
		count = (count + 1) / 2
	}
	memory, b := allocate(count)
	return operands{memory: memory, bf16: bf16}, b
}

// bits are an operand's bits as a float32.
func (o operands) bits(i int) uint32 {
	if o.bf16 {
		return uint32(*(*uint16)(o.at(i))) << 16
	}
	return *(*uint32)(o.at(i))
}

func (o operands) at(i int) unsafe.Pointer {
	if o.bf16 {
		return unsafe.Add(unsafe.Pointer(unsafe.SliceData(o.memory)), 2*i)
	}
	return unsafe.Pointer(&o.memory[i])
}

// putRows makes rows: [rows][block], from the first width columns of src: [rows, ld].
func (n products) putRows(rows int, dst operands, at int, src []float32, ld, width int) {
	C.rondo_put_rows(n.kernels, C.long(rows), dst.at(at), floats(src), C.long(ld), C.long(width))
}

// putPairs makes pairs of the same.
func (n products) putPairs(rows int, dst operands, at int, src []float32, ld, width int) {
	C.rondo_put_pairs(n.kernels, C.long(rows), dst.at(at), floats(src), C.long(ld),
		C.long(width))
}

// packColumns makes the panel of y = a w^T, of w: [width, cols] in rows of ld.
func (n products) packColumns(panel operands, at int, w []float32, width, cols, ld, padded int) {
	C.rondo_pack_columns(n.kernels, panel.at(at), floats(w), C.long(width), C.long(cols),
		C.long(ld), C.long(padded))
}

// packRows makes the panel of y = a w, of the first width columns of w: [rows, ld].
func (n products) packRows(panel operands, at int, w []float32, rows, ld, width, padded int) {
	C.rondo_pack_rows(n.kernels, panel.at(at), floats(w), C.long(rows), C.long(ld),
		C.long(width), C.long(padded))
}

// product adds a panel to c: [rows][block]; a: rows, stride operands from a block to the next.
func (n products) product(rows int, c []float32, a operands, at, stride, blocks int, panel operands,
	panelAt int) {
	C.rondo_product(n.kernels, C.long(rows), floats(c), a.at(at), C.long(stride),
		C.long(blocks), panel.at(panelAt))
}

// outers sets c: [rows, columns] in rows of ld to aT b, or adds that; a, b: pairs, stride operands
// from a block of b to the next.
func (n products) outers(c []float32, ld, rows, columns int, a operands, at int, b operands,
	stride, depth int, add bool) {
	C.rondo_outers(n.kernels, floats(c), C.long(ld), C.long(rows), C.long(columns), a.at(at),
		b.at(0), C.long(stride), C.long(depth), flag(add))
}

// burn loops over the product's instruction in registers and returns its number of operations.
func (n products) burn(rounds int) float64 {
	return float64(C.rondo_burn(n.kernels, C.long(rounds)))
}
