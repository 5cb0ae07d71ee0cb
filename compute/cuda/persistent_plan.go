//go:build cuda

package cuda

import (
	"fmt"
	"math"

	"rondo/compute"
)

// Constants that kernels/persistent.cuh fixes.
const (
	persistentThreads = 256
	persistentWarps   = persistentThreads / 32
	persistentTile    = 16   // lanes that a block multiplies at once
	persistentColumn  = 64   // of a lane's row of the exchange: a column
	tileColumnBytes   = 1024 // of a column, for a tile; of 16 rows of W_hh's, too
)

// persistentPlan is how a pass over a segment is laid out as one launch: slices*groups blocks, each
// with units of the layer's H and passes tiles of 16 lanes. Shared memory and the exchange are as
// in kernels/persistent.cuh.
type persistentPlan struct {
	rowTiles int // tiles of 16 rows that a block multiplies with: the kernel's MT
	units    int // of a block
	slices   int // blocks that share a group's lanes
	groups   int // that do not wait for each other
	passes   int // tiles of a group
	tiles    int // of all lanes
	columns  int // of a lane's row of the exchange: the operands of the product
	shared   int // bytes of shared memory a block
	cycles   int // that a step takes, estimated
}

// exchange is the bytes of the exchange, which has room for every step.
func (p persistentPlan) exchange(steps int) int {
	return steps * p.tiles * p.columns * tileColumnBytes
}

// persistentShape is one kernel: tiles of 16 rows, and columns that a warp has in registers.
type persistentShape struct{ rowTiles, inRegisters int }

// hasPersistent reports whether the persistent kernels support a cell; the others take a product a
// step.
func hasPersistent(c compute.Cell) bool {
	switch c {
	case compute.RNNTanh, compute.RNNReLU, compute.GRU, compute.LSTM:
		return true
	}
	return false
}

// persistentKernels lists the compiled shapes of a kernel.
func persistentKernels(o operands, backward bool) []persistentShape {
	switch {
	case backward && o == operandFP32:
		return []persistentShape{{1, 8}, {2, 2}}
	case backward:
		return []persistentShape{{1, 16}, {2, 8}}
	case o == operandFP32:
		return []persistentShape{{2, 2}}
	}
	return []persistentShape{{2, 8}, {4, 4}}
}

// persistentKernel is a kernel's name. The backward pass of fp16 multiplies bf16.
func persistentKernel(p *persistentPlan, o operands, backward bool) string {
	pass := "forward"
	if backward {
		pass = "backward"
	}
	return fmt.Sprintf("persistent_%s_%v_%d", pass, o, p.rowTiles)
}

// unitsOf is how many units a kernel's rows are: all gates of 8 or 16 forward, one row each back.
func (k persistentShape) unitsOf(cell compute.Cell, backward bool) int {
	rows := 16 * k.rowTiles
	switch {
	case backward:
		return rows
	case cell.Gates()*16 <= rows:
		return 16
	}
	return 8
}

// planPersistent lays a pass out for a GPU with this many multiprocessors and bytes of shared
// memory per block. It returns false if the shape does not fit, or if a product a step is expected
// to be faster: for one step, and for many lanes.
func planPersistent(s compute.RecurrentShape, o operands, multiprocessors, sharedPerBlock int,
	backward bool) (best persistentPlan, ok bool) {
	if !hasPersistent(s.Cell) || s.T < 2 ||
		max((s.T+1)*s.B, s.H)*s.Cell.Gates()*s.H > math.MaxInt32 {
		return best, false // the kernels count elements in 32 bits
	}
	best.cycles = cyclesOfSteps(s, o, multiprocessors)
	for _, k := range persistentKernels(o, backward) {
		p, fits := k.plan(s, o, multiprocessors, backward)
		if fits && p.shared <= sharedPerBlock && p.cycles < best.cycles &&
			p.exchange(s.T) <= 16*math.MaxInt32 {
			best, ok = p, true
		}
	}
	return best, ok
}

// plan lays a pass out for one kernel. Each group takes as few lanes as there are multiprocessors
// for: a block each, since a kernel takes all registers of one.
func (k persistentShape) plan(s compute.RecurrentShape, o operands, multiprocessors int,
	backward bool) (persistentPlan, bool) {
	p := persistentPlan{rowTiles: k.rowTiles, units: k.unitsOf(s.Cell, backward),
		tiles: ceil(s.B, persistentTile)}
	size := 4 // bytes of an operand
	if o == operandBF16 || o == operandFP16 {
		size = 2
	}
	// A row of the exchange is whole columns; the last ones may have units beyond H.
	p.slices = ceil(s.H, p.units)
	for p.slices*p.units*size%persistentColumn != 0 {
		p.slices++
	}
	if p.slices > multiprocessors {
		return p, false
	}
	p.passes = ceil(p.tiles, multiprocessors/p.slices)
	p.groups = ceil(p.tiles, p.passes)
	p.columns = p.slices * p.units * size / persistentColumn
	if backward {
		p.columns *= s.Cell.Gates()
	}
	rest := max(0, ceil(p.columns, persistentWarps)-k.inRegisters) // in shared memory, of a warp
	p.shared = 2*persistentWarps*persistentTile*(16*k.rowTiles+4)*4 +
		rest*persistentWarps*k.rowTiles*tileColumnBytes
	if o == operandFP32 {
		p.shared += persistentWarps * 1024 // where a warp shows itself its lanes' numbers
	}
	p.cycles = p.estimate(o, rest, min(s.B, persistentTile), multiprocessors)
	return p, true
}

// estimate is how many cycles a step takes, of the lanes that a tile has at most, from what an H100
// or H200 does per cycle (at about 1.75 GHz; older GPUs do less of everything in one):
//
//   - the L2 cache gives all blocks together 24 bytes a multiprocessor, and one block 64 at most. A
//     tile costs a block its rows of the exchange, 64 bytes a column and lane;
//   - a multiprocessor does 0.6 tensor instructions, of which a column and 16 rows take four, or
//     128 float32 multiply-adds;
//   - shared memory gives or takes 128 bytes: the sums of 8 warps, written and read, and the part
//     of W_hh that is not in registers;
//   - the gates of a tile and the barrier before them take about 400 cycles;
//   - from a block's write to another's read through the L2 cache, 1200 pass. With several tiles
//     one's wait is hidden by the others' work.
//
// For LSTM in bf16 on an H200 that is, per step, with one way through the exchange each:
//
//	H     B          blocks  through L2  operations  estimate  limit
//	256   32  there  64      0.5 MiB     17 M        1.2 µs    the way through the exchange
//	256   32  back   32      1 MiB       17 M        1.3 µs    the same
//	512   64  there  128     4 MiB       134 M       1.5 µs    L2, and the work of a tile
//	512   64  back   64      4 MiB       134 M       1.8 µs    L2, then the way
//	1024  64  there  128     8 MiB       537 M       2.6 µs    L2
//	1024  64  back   128     16 MiB      537 M       4.7 µs    L2, and W_hh in shared memory
func (p persistentPlan) estimate(o operands, rest, lanes, multiprocessors int) int {
	bandwidth := min(64, 24*float64(multiprocessors)/float64(p.slices*p.groups))
	product := float64(p.columns*p.rowTiles) * 4 / 0.6
	if o == operandFP32 {
		product = float64(p.columns*p.rowTiles) * 16 * 16 * 16 / 128
	}
	shared := p.rowTiles*2*persistentWarps*tileColumnBytes + rest*persistentWarps*p.rowTiles*
		tileColumnBytes
	read := float64(p.columns*lanes*persistentColumn) / bandwidth
	tile := max(read, product) + float64(shared)/128 + 400
	return int(max(float64(p.passes)*tile, tile+1200))
}

// cyclesOfSteps is how many cycles a step takes as a product and a kernel of its own: the two
// launches, about 3 µs each, and the product's operations at 60% of the peak.
func cyclesOfSteps(s compute.RecurrentShape, o operands, multiprocessors int) int {
	perCycle := 4096.0 // operations of a multiprocessor
	switch o {
	case operandTF32:
		perCycle = 2048
	case operandFP32:
		perCycle = 256
	}
	operations := 2 * float64(s.B) * float64(s.Cell.Gates()*s.H) * float64(s.H)
	return 10500 + int(operations/(0.6*perCycle*float64(multiprocessors)))
}

// ceil is a/b, rounded up.
func ceil(a, b int) int { return (a + b - 1) / b }
