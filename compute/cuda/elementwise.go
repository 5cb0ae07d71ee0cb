//go:build cuda

package cuda

import (
	"math"
	"unsafe"

	"rondo/compute"
)

// The threads of kernels that go over memory once: blocks of flatThreads, and as many of them as
// have flatWork elements each, up to flatBlocks a multiprocessor, which are as many threads as it
// can hold.
const (
	flatThreads = 256
	flatWork    = 4 * flatThreads
	flatBlocks  = 8
	flatWarps   = flatThreads / 32
)

// over is a launch of threads that go over n elements, four at a time.
func (q *queue) over(n int) launch { return q.parted(n, flatWork) }

// overRows is a launch of warps that go over rows.
func (q *queue) overRows(rows int) launch { return q.parted(rows, flatWarps) }

// parted is a launch for n things, part of them for each block.
func (q *queue) parted(n, part int) launch {
	return across(min(blocksFor(n, part), flatBlocks*q.info.Multiprocessors), flatThreads)
}

// Scale multiplies x by a.
func (d *Device) Scale(x []float32, a float32) {
	if len(x) > 0 {
		d.queue.launch("flat_scale", d.queue.over(len(x)), int64(len(x)), x, a)
	}
}

// Add adds x to y.
func (d *Device) Add(y, x []float32) {
	compute.CheckSame("Add", len(y), len(x))
	if len(x) > 0 {
		d.queue.launch("flat_add", d.queue.over(len(x)), int64(len(x)), y, x)
	}
}

// AddBias adds b: [n] to every row of x: [m, n].
func (d *Device) AddBias(x, b []float32) {
	compute.CheckBias(x, b)
	if rows := len(x) / len(b); rows > 0 {
		d.queue.launch("flat_add_bias", d.queue.overRows(rows), int64(rows), int64(len(b)), x, b)
	}
}

// Embed gathers rows: y[i] = table[ids[i]]; table: [V, E], y: [N, E].
func (d *Device) Embed(y, table []float32, ids []int32) {
	if len(ids) == 0 {
		return
	}
	width, vocabulary := compute.CheckTable("Embed", table, y, len(ids))
	staged := d.ferry.stage(4*len(ids), func(host []byte) {
		compute.CheckIDs("Embed", ids, vocabulary)
		copy(int32s(host), ids)
	})
	d.queue.launch("flat_embed", d.queue.overRows(len(ids)), int64(len(ids)), int64(width), y,
		table, staged)
}

// EmbedBackward adds dy's rows to dtable's: dtable[ids[i]] += dy[i], in the order of i.
func (d *Device) EmbedBackward(dtable, dy []float32, ids []int32) {
	if len(ids) == 0 {
		return
	}
	n := len(ids)
	width, vocabulary := compute.CheckTable("EmbedBackward", dtable, dy, n)
	staged := d.ferry.stage(4*groupedLen(n), func(host []byte) {
		compute.CheckIDs("EmbedBackward", ids, vocabulary)
		if len(d.idRows) < vocabulary {
			d.idRows = make([]int32, vocabulary)
		}
		group(int32s(host), ids, d.idRows)
	})
	groups := grouped(staged, n)
	// A thread has a column of one id after another: how many ids differ is known only when they
	// are, which on a Replay are others.
	l := across(min(n, vocabulary, flatBlocks*d.queue.info.Multiprocessors), embedThreads)
	l.grid[1] = blocksFor(width, embedThreads)
	d.queue.launch("flat_embed_backward", l, int64(width), dtable, dy, groups.count, groups.ids,
		groups.starts, groups.order)
}

// embedThreads is how many columns a block of EmbedBackward has.
const embedThreads = 128

// Dropout sets y = x / (1-p) where compute.DropoutKeep keeps an element of x: [steps, B, H], and
// 0 elsewhere; B is len(keys).
func (d *Device) Dropout(y, x []float32, steps int, p float32, keys []uint64) {
	rows := compute.CheckDropout(y, x, steps, p, keys)
	if len(x) == 0 {
		return
	}
	staged := d.ferry.stage(8*len(keys), func(host []byte) {
		copy(unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(host))), len(keys)), keys)
	})
	d.queue.launch("flat_dropout", d.queue.overRows(rows), int64(rows), int64(len(x)/rows),
		int32(len(keys)), y, x, staged, p, 1/(1-p))
}

// CopyRows copies or adds columns of src's rows ids to columns of dst's rows.
func (d *Device) CopyRows(dst, src compute.Columns, n, width int, ids []int32, add bool) {
	compute.CheckCopyRows(dst, src, n, width, ids)
	if n*width == 0 {
		return
	}
	var staged unsafe.Pointer
	if ids != nil {
		staged = d.ferry.stage(4*n, func(host []byte) {
			compute.CheckBelow("CopyRows", ids, src.Rows())
			copy(int32s(host), ids)
		})
	}
	d.queue.launch("flat_copy_rows", d.queue.overRows(n), int64(n), int64(width), dst.X[dst.At:],
		int64(dst.Stride), src.X[min(src.At, len(src.X)):], int64(src.Stride), staged, flag(add))
}

// Pool reduces the first lengths[b] steps of each row b of x: [steps, B, H] to y: [B, H].
func (d *Device) Pool(p compute.Pooling, y, x []float32, steps int, lengths []int32) {
	compute.CheckPool(p, y, x, steps, lengths)
	staged := d.ferry.stageLengths(lengths, steps)
	if len(y) > 0 {
		d.queue.launch("flat_pool", d.queue.parted(len(y), flatThreads), int32(p), int64(len(y)),
			int64(len(y)/len(lengths)), y, x, staged)
	}
}

// PoolBackward overwrites dx with the gradient of Pool's x.
func (d *Device) PoolBackward(p compute.Pooling, dx, dy, x, y []float32, steps int,
	lengths []int32) {
	compute.CheckPoolBackward(p, dx, dy, x, y, steps, lengths)
	staged := d.ferry.stageLengths(lengths, steps)
	if len(dy) > 0 {
		d.queue.launch("flat_pool_backward", d.queue.parted(len(dy), flatThreads), int32(p),
			int64(len(dy)), int64(len(dy)/len(lengths)), int32(steps), dx, dy, x, y, staged)
	}
}

// stageLengths stages the lengths of rows.
func (f *ferry) stageLengths(lengths []int32, steps int) unsafe.Pointer {
	return f.stage(4*len(lengths), func(host []byte) {
		compute.CheckLengths(lengths, steps)
		copy(int32s(host), lengths)
	})
}

// Shared memory of kernels that sum over a block: one number for every warp.
const (
	sumBytes    = 32 * 8
	sumsThreads = 1024 // of the one block that adds the other blocks' sums
)

// SumSquares returns the sum of squares, accumulated in float64 in the order of the contract.
func (d *Device) SumSquares(x []float32) float64 {
	if len(x) == 0 {
		return 0
	}
	// The total is the first of 8 bytes, the blocks' sums are behind it.
	total := d.memory.scratch(8 * (1 + squareBlocks(x)))
	partial := unsafe.Add(total, 8)
	sumBlocks(&d.queue, partial, x)
	d.queue.launch("flat_sum_parts", across(1, flatThreads), int64(squareBlocks(x)), partial, total,
		unsafe.Pointer(nil))
	return readDouble(d, total)
}

// squareBlocks is how many sums sumBlocks computes.
func squareBlocks(x []float32) int { return blocksFor(len(x), compute.SquaresBlock) }

// sumBlocks sets each of partial to the sum of squares of a block of x.
func sumBlocks(q *queue, partial unsafe.Pointer, x []float32) {
	l := across(squareBlocks(x), flatThreads)
	l.shared = 4*compute.SquaresBlock + 8*compute.SquaresLanes
	q.launch("flat_sum_squares", l, int64(len(x)), x, partial)
}

// sumDoubles sets *total, and a result, to the sum of n float64s, in a fixed order.
func sumDoubles(q *queue, total unsafe.Pointer, r *result, from unsafe.Pointer, n int) {
	l := across(1, sumsThreads)
	l.shared = sumBytes
	q.launch("flat_sum_doubles", l, int64(n), from, total, r.place())
}

// readDouble waits for a float64 in the device's memory.
func readDouble(d *Device, from unsafe.Pointer) float64 {
	var halves [2]float32 // whose bits are those of the float64, in the order of a little-endian
	d.Download(halves[:], unsafe.Slice((*float32)(from), len(halves)))
	low, high := math.Float32bits(halves[0]), math.Float32bits(halves[1])
	return math.Float64frombits(uint64(high)<<32 | uint64(low))
}

// The kernel flat_column_sums: a block sums columnWidth columns of a slab of rows. Slabs have
// columnRows rows, few enough that small matrices keep a GPU busy; taller ones where there would be
// more than columnSlabs, whose sums one block adds.
const (
	columnWidth    = 32
	columnParts    = 8
	columnRows     = 128
	columnSlabs    = 256
	columnSumBytes = 4 * columnWidth * columnParts
)

// summed is the destination of column sums: they overwrite out or, with add, are added to it. The
// first same columns also go to also.
type summed struct {
	out, also unsafe.Pointer
	same      int
	add       bool
}

// columnSums sums the columns of x: [rows, columns], in a fixed order. It uses the scratch if there
// are many rows.
func columnSums(m *memory, to summed, x unsafe.Pointer, rows, columns int) {
	slabSums(m, to, x, rows, columns, slabRows(rows, columnRows, columnSlabs))
}

// slabRows returns the rows of a slab: least, or more if there would be more than most slabs.
func slabRows(rows, least, most int) int { return max(least, blocksFor(rows, most)) }

// slabSums sums the columns of each slab of rows, then the slabs' sums as one slab.
func slabSums(m *memory, to summed, x unsafe.Pointer, rows, columns, slab int) {
	slabs := blocksFor(rows, slab)
	l := launch{grid: [3]int{blocksFor(columns, columnWidth), slabs, 1},
		block: [3]int{columnWidth * columnParts, 1, 1}, shared: columnSumBytes}
	if slabs > 1 {
		partial := m.scratch(4 * slabs * columns)
		m.queue.launch("flat_column_sums", l, int32(rows), int32(slab), int64(columns), x, partial,
			unsafe.Pointer(nil), int64(0), int32(0))
		x, rows, l.grid[1] = partial, slabs, 1
	}
	m.queue.launch("flat_column_sums", l, int32(rows), int32(rows), int64(columns), x, to.out,
		to.also, int64(to.same), flag(to.add))
}
