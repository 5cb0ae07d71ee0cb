package bench

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"rondo/compute"
)

// lab times calls of a device. What is measured after a ctx has ended is zero.
type lab struct {
	dev    Device
	shape  Shape
	window time.Duration // for each thing measured
	dice   *rand.Rand
	held   [][]float32
	passes map[layerKind]passes // what was measured
}

func newLab(dev Device, s Shape, window time.Duration) *lab {
	return &lab{dev: dev, shape: s, window: window, dice: rand.New(rand.NewPCG(1, 2)),
		passes: map[layerKind]passes{}}
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

// leastRuns is how often a call is timed at least: the first finds memory that was never touched.
const leastRuns = 3

// best repeats do for the window, and returns the shortest time that it took: on a machine that
// does other things too, the least disturbed.
func (l *lab) best(ctx context.Context, do func()) time.Duration {
	least := time.Duration(math.MaxInt64)
	began := time.Now()
	for runs := 0; runs < leastRuns || time.Since(began) < l.window; runs++ {
		if ctx.Err() != nil {
			return 0
		}
		before := time.Now()
		do()
		least = min(least, time.Since(before))
	}
	return max(least, 1)
}

// layerKind is a layer to be measured.
type layerKind struct {
	cell          compute.Cell
	hidden, width int
	dense         bool // or ids
	dx            bool // the gradient of the input is asked for
}

// passes are the shortest times of a layer's passes over a segment.
type passes struct{ forward, backward time.Duration }

// layer measures the passes of a layer of this kind, once.
func (l *lab) layer(ctx context.Context, cell compute.Cell, hidden, width int,
	dense, dx bool) passes {
	kind := layerKind{cell, hidden, width, dense, dx}
	if p, known := l.passes[kind]; known {
		return p
	}
	p := l.time(ctx, kind)
	l.passes[kind] = p
	return p
}

func (l *lab) time(ctx context.Context, kind layerKind) passes {
	defer l.free()
	s, n := l.shape, l.shape.Tokens()
	rows := kind.cell.Gates() * kind.hidden
	weights := func(tensor func(n int) []float32) compute.RecurrentWeights {
		return compute.RecurrentWeights{IH: tensor(rows * kind.width),
			HH: tensor(rows * kind.hidden), BiasIH: tensor(rows), BiasHH: tensor(rows)}
	}
	state := func() compute.RecurrentState {
		x := compute.RecurrentState{H: l.zeros(s.Batch * kind.hidden)}
		if kind.cell.States() == 2 {
			x.C = l.zeros(s.Batch * kind.hidden)
		}
		return x
	}
	bound := 1 / math.Sqrt(float64(kind.hidden))
	w := weights(func(n int) []float32 { return l.random(n, bound) })
	dw := weights(l.zeros)
	before, after := state(), state()
	y, dy := l.zeros(n*kind.hidden), l.random(n*kind.hidden, 1/float64(n))
	var in compute.RecurrentInput
	var dx []float32
	if kind.dense {
		in.X = l.random(n*kind.width, 1)
	} else {
		in.IDs = l.ids(n, kind.width)
	}
	if kind.dx {
		dx = l.zeros(n * kind.width)
	}
	layer := l.dev.NewRecurrent(compute.RecurrentShape{Cell: kind.cell, T: s.BPTT, B: s.Batch,
		D: kind.width, H: kind.hidden}, false)
	defer layer.Close()

	forward, backward := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	l.best(ctx, func() {
		began := time.Now()
		layer.Forward(w, in, before, y, after)
		alone := time.Since(began)
		layer.Backward(dy, compute.RecurrentState{}, dw, dx, compute.RecurrentState{})
		forward, backward = min(forward, alone), min(backward, time.Since(began)-alone)
	})
	if ctx.Err() != nil {
		return passes{}
	}
	return passes{forward: forward, backward: backward}
}
