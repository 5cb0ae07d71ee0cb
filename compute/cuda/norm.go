//go:build cuda

package cuda

import (
	"unsafe"

	"rondo/compute"
)

// LayerNorm normalises rows.
func (d *Device) LayerNorm(n compute.LayerNorm) {
	n.Check()
	if rows := n.Rows(); rows > 0 {
		d.queue.launch("norm_forward", d.queue.overRows(rows), int64(rows), int64(len(n.Weight)),
			n.X, n.Weight, n.Bias, at(n.Stats), n.Y)
	}
}

// LayerNormBackward overwrites dx, dw and db with the gradients of a layer normalisation. dw and db
// are sums over slabs of rows, then over the slabs' sums; dx, which may take dy's place, is last.
func (d *Device) LayerNormBackward(n compute.LayerNorm, dy, dx, dw, db []float32) {
	n.CheckBackward(dy, dx, dw, db)
	rows, width := n.Rows(), len(n.Weight)
	if rows == 0 {
		d.Zero(dw)
		d.Zero(db)
		return
	}
	slab := slabRows(rows, columnRows, columnSlabs)
	slabs := blocksFor(rows, slab)
	sums := [2]unsafe.Pointer{at(dw), at(db)}
	if slabs > 1 {
		sums[0] = d.memory.scratch(2 * 4 * slabs * width)
		sums[1] = unsafe.Add(sums[0], 4*slabs*width)
	}
	l := launch{grid: [3]int{blocksFor(width, columnWidth), slabs, 1},
		block: [3]int{columnWidth * columnParts, 1, 1}, shared: 2 * columnSumBytes}
	d.queue.launch("norm_columns", l, int32(rows), int32(slab), int64(width), n.X, n.Stats, dy,
		sums[0], sums[1])
	if slabs > 1 {
		slabSums(&d.memory, summed{out: at(dw)}, sums[0], slabs, width, slabs)
		slabSums(&d.memory, summed{out: at(db)}, sums[1], slabs, width, slabs)
	}
	d.queue.launch("norm_rows", d.queue.overRows(rows), int64(rows), int64(width), n.X, n.Weight,
		n.Stats, dy, dx)
}
