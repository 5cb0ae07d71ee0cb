package bench

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"rondo/compute"
)

// lab times calls of a device.
type lab struct {
	meter  *Meter
	dev    Device
	shape  Shape
	window time.Duration // for each thing measured
	dice   *rand.Rand
	held   [][]float32
}

func newLab(m *Meter, dev Device, s Shape, window time.Duration) *lab {
	return &lab{meter: m, dev: dev, shape: s, window: window, dice: rand.New(rand.NewPCG(1, 2))}
}

// did records the rate that a thing of this many operations reached in its fastest round.
func (l *lab) did(operations float64, took []float64) {
	l.meter.reached(l.dev, operations/slices.Min(took))
}

// zeros is device memory until free.
func (l *lab) zeros(n int) []float32 {
	x := l.dev.Alloc(n)
	l.held = append(l.held, x)
	return x
}

// random is device memory of numbers in [-bound, bound), until free.
func (l *lab) random(n int, bound float64) []float32 {
	host := make([]float32, n)
	for i := range host {
		host[i] = float32((2*l.dice.Float64() - 1) * bound)
	}
	x := l.zeros(n)
	l.dev.Upload(x, host)
	return x
}

func (l *lab) ids(n, limit int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(l.dice.IntN(limit))
	}
	return x
}

func (l *lab) free() {
	for _, x := range l.held {
		l.dev.Free(x)
	}
	l.held = nil
}

// leastRounds is how many rounds count at least.
const leastRounds = 5

// rounds runs the things in turn, round after round, for as many windows as there are things. It
// returns the seconds that each took in the fastest rounds: [thing][round]. A machine that is
// slower for a while slows all of a round. The first round does not count, because it touches
// memory for the first time.
func (l *lab) rounds(ctx context.Context, things ...func()) ([][]float64, error) {
	var all [][]float64 // [round][thing]
	began := time.Now()
	for round := 0; round <= leastRounds ||
		time.Since(began) < l.window*time.Duration(len(things)); round++ {
		took := make([]float64, len(things))
		for i, do := range things {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			before := time.Now()
			do()
			took[i] = max(time.Since(before), 1).Seconds()
		}
		if round > 0 {
			all = append(all, took)
		}
	}
	return fastest(all), nil
}

// fastest turns [round][thing] into [thing][round] of the quarter of the rounds that took the
// least, but of 3 if there are as many.
func fastest(rounds [][]float64) [][]float64 {
	sum := func(round []float64) (s float64) {
		for _, v := range round {
			s += v
		}
		return s
	}
	slices.SortStableFunc(rounds, func(a, b []float64) int { return cmp.Compare(sum(a), sum(b)) })
	things := make([][]float64, len(rounds[0]))
	for _, round := range rounds[:min(len(rounds), max(3, len(rounds)/4))] {
		for i, v := range round {
			things[i] = append(things[i], v)
		}
	}
	return things
}

// above returns the median of values and whether it is above 0 by more than they scatter: by twice
// the standard error of a median, with the median absolute deviation for their spread.
func above(values []float64) (median float64, sure bool) {
	median = Median(values)
	away := make([]float64, len(values))
	for i, v := range values {
		away[i] = math.Abs(v - median)
	}
	const deviation, ofMedian = 1.4826, 1.2533 // of a normal distribution
	noise := deviation * Median(away) * ofMedian / math.Sqrt(float64(len(values)))
	return median, median > 2*noise
}

// passes are a layer's, over a segment.
type passes struct {
	forward, backward func()
	close             func()
}

// layer makes a layer with an input of that width, or of ids if it is 0. Its memory is held until
// free.
func (l *lab) layer(cell compute.Cell, hidden, width int) passes {
	s, n := l.shape, l.shape.Tokens()
	columns := width
	var in compute.RecurrentInput
	var dx []float32
	if width == 0 {
		columns = s.Vocab
		in.IDs = l.ids(n, s.Vocab)
	} else {
		in.X, dx = l.random(n*width, 1), l.zeros(n*width)
	}
	shape := compute.RecurrentShape{Cell: cell, T: s.BPTT, B: s.Batch, D: columns, H: hidden}
	bound := 1 / math.Sqrt(float64(hidden))
	w := shape.Weights(func(n int) []float32 { return l.random(n, bound) })
	dw := shape.Weights(l.zeros)
	before, after := shape.State(l.zeros), shape.State(l.zeros)
	y, dy := l.zeros(n*hidden), l.random(n*hidden, 1/float64(n))
	layer := l.dev.NewRecurrent(shape, false)
	return passes{
		forward: func() { layer.Forward(w, in, before, y, after) },
		backward: func() {
			layer.Backward(dy, compute.RecurrentState{}, dw, dx, compute.RecurrentState{})
		},
		close: layer.Close,
	}
}

// product multiplies matrices of these sizes, op(a): [m, k] by op(b): [k, n], in memory that is
// held until free.
func (l *lab) product(transA, transB bool, m, n, k int) func() {
	a, b, c := l.random(m*k, 1), l.random(k*n, 1), l.zeros(m*n)
	return func() { l.dev.Gemm(transA, transB, m, n, k, 1, a, b, 0, c) }
}
