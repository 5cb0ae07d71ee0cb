//go:build cuda

package cuda

import "rondo/compute"

// wave is how a pass over a stack of layers is laid out as a wavefront: a layer works on one chunk
// of the segment while the one that reads it works on the chunk before. Each has a share of the
// multiprocessors. A block of a persistent kernel has a multiprocessor to itself and waits for the
// others of its grid; of two grids that do not fit on the GPU together each could have a part of
// it, and wait for the rest for ever. So the plans' blocks are not more than multiprocessors, all
// together: planWave sees to it, a lane has one kernel at a time, and the Device's stream begins no
// other of them before the lanes have joined it. Kernels that wait for nothing make room. Whether a
// driver has two cooperative grids at once is its own affair: if not, they come one by one.
type wave struct {
	// steps are those of a chunk, of which the last may have fewer; 0: one layer after another.
	steps int
	plans []persistentPlan // of each layer
}

// What is added to the steps' time, in cycles; reasoned, not measured.
const (
	// linkCycles is from the end of one kernel of a graph to the beginning of the one that waits
	// for it, about 2 µs; chunkLinks how many there are in a chunk: emptying the exchange, the
	// product of the input in two, the recurrence, its results, dropout.
	linkCycles, chunkLinks = 3500, 6
	// waveGain is how much of the time, in percent, a wave must save by this estimate.
	waveGain = 10
)

// planWave says whether a wavefront is thought faster than layers one after the other on all
// multiprocessors, and with what chunks. With C chunks of T/C steps L layers take
//
//	(C + L - 1) (T/C step' + chunk'),   and one after the other   L (T step + chunk),
//
// step as persistentPlan estimates it and step' the same with 1/L of the multiprocessors, and so of
// the L2 cache's bytes: where these or the operations are the limit, step' is L step or so, and no
// wave gains. Where the way through the exchange is, step' is step. chunk is what comes once:
// launches, W_hh's way onto the chip, and the product of the input's side, which in a lane our own
// kernels make. For two layers of LSTM in bf16 on an H200, forward:
//
//	H     B   T    step, step'  limit                         one by one  wave
//	256   32  35   2021, 2186   the way; chunk is the most    0.11 ms     no
//	256   32  256  2021, 2186   the way                       0.63 ms     0.52 ms, 4 chunks
//	512   1   256  2069, 2069   the way                       0.63 ms     0.46 ms, 4 chunks
//	512   64  256  2635, 3147   our products                  0.92 ms     no
//	1024  64  256  4471, 8943   L2, of which each has a half  1.83 ms     no
func planWave(shapes []compute.RecurrentShape, o operands, multiprocessors, sharedPerBlock int,
	backward bool) wave {
	layers, T := len(shapes), shapes[0].T
	share := multiprocessors / layers
	if layers < 2 || share < 1 {
		return wave{}
	}
	byOne, step, chunk := 0, 0, 0
	var plans []persistentPlan
	for _, s := range shapes {
		alone, _ := planPersistent(s, o, multiprocessors, sharedPerBlock, backward)
		byOne += T*alone.cycles + alone.once(s, o, T, multiprocessors)
		p, ok := planPersistent(s, o, share, sharedPerBlock, backward)
		if !ok {
			return wave{}
		}
		plans = append(plans, p)
		step, chunk = max(step, p.cycles), max(chunk, p.once(s, o, 0, share))
	}
	best, at := byOne*(100-waveGain)/100, 0
	for n := 2; n <= T/2; n++ {
		product := laneProductCycles(o, n*shapes[1].B, shapes[1].Cell.Gates()*shapes[1].H,
			shapes[1].D, share)
		if all := (ceil(T, n) + layers - 1) * (n*step + chunk + product); all < best {
			best, at = all, n
		}
	}
	if at == 0 {
		return wave{}
	}
	return wave{at, plans}
}

// laneProductCycles is how many cycles our own kernels take in a lane for a product of [m, k] and
// [k, n]. They read operands of float32, of all precisions: a tile of w rows and columns takes 8 w
// bytes for 2 w^2 operations. The L2 cache gives a multiprocessor 24 bytes a cycle, as estimate has
// it, and so there are at most 6 w operations in one: 768 with the larger tiles, which is 19% of
// what its tensor cores do in bf16, or 384. In fp32 the limit is 60% of the peak. Reasoned, not
// measured.
func laneProductCycles(o operands, m, n, k, multiprocessors int) int {
	perCycle := 6 * chooseMethod(o, m, n, k, false, true).tile
	return max(productCycles(o, m, n, k, multiprocessors),
		int(2*float64(m)*float64(n)*float64(k)/float64(perCycle*multiprocessors)))
}

// once is how many cycles a launch takes besides its steps: the way onto the chip of float32 W_hh,
// and what stands around it, with the input's side of so many steps.
func (p persistentPlan) once(s compute.RecurrentShape, o operands, steps, multiprocessors int) int {
	perColumn := persistentColumn / 4
	if o == operandBF16 || o == operandFP16 {
		perColumn *= 2
	}
	return chunkLinks*linkCycles + 4*16*p.rowTiles*p.columns*perColumn/24 +
		productCycles(o, steps*s.B, s.Cell.Gates()*s.H, s.D, multiprocessors)
}
