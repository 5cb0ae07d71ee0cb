package bench

import (
	"context"
	"math"
	"sync"
	"time"

	"gonum.org/v1/gonum/blas/blas32"

	"rondo/compute"
	"rondo/model"
)

// KernelRow is what one part of a training step takes.
type KernelRow struct {
	Case
	Device  string  `json:"device"`
	Part    string  `json:"part"`
	Seconds float64 `json:"seconds"` // in a step; the best of several
	Share   float64 `json:"share"`   // of the step
	// TokensPerSecond is what the part alone would allow.
	TokensPerSecond float64 `json:"tokens_per_second"`
	// GFLOPS counts products; 0 where there are none.
	GFLOPS     float64 `json:"gflops"`
	PeakGFLOPS float64 `json:"peak_gflops"`
	OfPeak     float64 `json:"of_peak"`
	// GBPerSecond counts what passes over memory read and write, and TriadGBPerSecond is the rate
	// of y += a x over as much memory on as many threads; 0 where the part is no such pass.
	GBPerSecond      float64 `json:"gb_per_second"`
	TriadGBPerSecond float64 `json:"triad_gb_per_second"`
}

// The parts of a step.
const (
	PartRecurrentForward  = "recurrent product forward"
	PartRecurrentBackward = "recurrent product backward"
	PartInputForward      = "input product forward"
	PartInputBackward     = "input product backward"
	PartWeightGradient    = "weight gradient"
	PartGates             = "gates and the rest"
	PartLayers            = "recurrent layers, whole" // the sum of those above
	PartEmbedding         = "embedding"
	PartOutput            = "output layer and loss"
	PartClip              = "clip by norm"
	PartUpdate            = "update (sgd)"
	PartStep              = "sum"
)

// Kernels measures the parts of a step, each on its own, for so long.
//
// Layers have no clocks in them, so what is inside one is found by difference, as layerParts says.
func Kernels(ctx context.Context, dev Device, s Shape, window time.Duration) ([]KernelRow,
	error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if err := (Windows{Length: window, Count: 1}).Validate(); err != nil {
		return nil, err
	}
	l := newLab(dev, s, window)
	defer l.free()
	peak := dev.Peak(peakWindow)
	parts := l.layers(ctx)
	if s.Embed > 0 {
		parts = append(parts, l.embedding(ctx))
	}
	parts = append(parts, l.output(ctx))
	parts = append(parts, l.flat(ctx)...)
	if err := context.Cause(ctx); err != nil {
		return nil, err // and what was measured is not whole
	}
	step := part{name: PartStep}
	for _, p := range parts {
		if !p.inLayers {
			step.took += p.took
			step.flops += p.flops
		}
	}
	var rows []KernelRow
	for _, p := range append(parts, step) {
		seconds := p.took.Seconds()
		r := KernelRow{Case: newCase(s, dev), Device: dev.Name(), Part: p.name, Seconds: seconds,
			Share:           ratio(seconds, step.took.Seconds()),
			TokensPerSecond: ratio(float64(s.Tokens()), seconds),
			GFLOPS:          ratio(p.flops, seconds) / 1e9,
			PeakGFLOPS:      peak / 1e9, GBPerSecond: ratio(p.bytes, seconds) / 1e9,
			TriadGBPerSecond: p.triad / 1e9}
		r.OfPeak = ratio(r.GFLOPS, r.PeakGFLOPS)
		rows = append(rows, r)
	}
	return rows, nil
}

// part is what a part of a step takes and does.
type part struct {
	name         string
	inLayers     bool // and so in the time of PartLayers
	took         time.Duration
	flops, bytes float64
	triad        float64 // bytes a second
}

// layerParts are a layer's forward and backward passes, taken apart:
//
//   - a layer of ids looks its input up: what it multiplies is h W_hh^T and, backward, d W_hh and
//     d^T h;
//   - one of dense input as wide as its hidden state does more than that: x W_ih^T and d^T x, which
//     has the size of d^T h; and, if asked for the gradient of x, d W_ih;
//   - an RNN with ReLU that is sqrt(K) times as wide has as many recurrent weights, and next to
//     nothing else. Packing the weights, once a segment, is in its time.
type layerParts struct {
	forward, backward             time.Duration // the recurrent product
	inputForward, inputBackward   time.Duration // of the measured width
	weightGradient, inputGradient time.Duration // d^T h; d^T x of the measured width
	gates                         time.Duration // the rest
}

// narrow is the width of a one-hot input that costs next to nothing.
const narrow = 32

// reference measures what does not depend on the layer's input: the recurrent product, d^T h and
// the gates.
func (l *lab) reference(ctx context.Context) layerParts {
	s := l.shape
	plain := l.layer(ctx, s.Cell, s.Hidden, narrow, false, false)
	square := l.layer(ctx, s.Cell, s.Hidden, s.Hidden, true, false)
	// d^T h has the size of d^T x.
	gradient := max(0, square.backward-plain.backward)

	gates := float64(s.Cell.Gates())
	wide := max(1, int(math.Round(float64(s.Hidden)*math.Sqrt(gates))))
	relu := l.layer(ctx, compute.RNNReLU, wide, narrow, false, false)
	scale := gates * float64(s.Hidden) * float64(s.Hidden) / (float64(wide) * float64(wide))
	forward := min(plain.forward, time.Duration(scale*float64(relu.forward)))
	both := min(plain.backward, time.Duration(scale*float64(relu.backward)))
	return layerParts{forward: forward, backward: max(0, both-gradient), weightGradient: gradient,
		gates: plain.forward - forward + plain.backward - both}
}

// dense adds what a dense input of this width costs.
func (l *lab) dense(ctx context.Context, p layerParts, width int) layerParts {
	s := l.shape
	plain := l.layer(ctx, s.Cell, s.Hidden, narrow, false, false)
	fixed := l.layer(ctx, s.Cell, s.Hidden, width, true, false)
	whole := l.layer(ctx, s.Cell, s.Hidden, width, true, true)
	p.inputForward = max(0, fixed.forward-plain.forward)
	p.inputGradient = max(0, fixed.backward-plain.backward)
	p.inputBackward = max(0, whole.backward-fixed.backward)
	return p
}

// oneHot adds what looking the input up costs beyond the reference.
func (l *lab) oneHot(ctx context.Context, p layerParts) layerParts {
	s := l.shape
	plain := l.layer(ctx, s.Cell, s.Hidden, narrow, false, false)
	looked := l.layer(ctx, s.Cell, s.Hidden, s.Vocab, false, false)
	p.gates = max(0, p.gates+looked.forward-plain.forward+looked.backward-plain.backward)
	return p
}

// layers measures the stack.
func (l *lab) layers(ctx context.Context) []part {
	s, n := l.shape, float64(l.shape.Tokens())
	k, h := float64(s.Cell.Gates()), float64(s.Hidden)
	reference := l.reference(ctx)
	parts := []part{{name: PartRecurrentForward}, {name: PartRecurrentBackward},
		{name: PartInputForward}, {name: PartInputBackward}, {name: PartWeightGradient},
		{name: PartGates}}
	for layer := range s.Layers {
		width := s.inputWidth(layer)
		p := reference
		if width == 0 {
			p = l.oneHot(ctx, p)
		} else {
			p = l.dense(ctx, p, width)
		}
		recurrent, input := 2*k*h*h*n, 2*k*h*float64(width)*n
		for i, add := range []part{
			{took: p.forward, flops: recurrent}, {took: p.backward, flops: recurrent},
			{took: p.inputForward, flops: input}, {took: p.inputBackward, flops: input},
			{took: p.weightGradient + p.inputGradient, flops: recurrent + input},
			{took: p.gates},
		} {
			parts[i].took += add.took
			parts[i].flops += add.flops
		}
	}
	whole := part{name: PartLayers}
	kept := parts[:0]
	for _, p := range parts {
		whole.took += p.took
		whole.flops += p.flops
		if p.took > 0 || p.flops > 0 {
			p.inLayers = true
			kept = append(kept, p)
		}
	}
	return append(kept, whole)
}

// embedding measures the rows' way into x, and their gradients' way out of it.
func (l *lab) embedding(ctx context.Context) part {
	s := l.shape
	table, dtable := l.random(s.Vocab*s.Embed, 1), l.zeros(s.Vocab*s.Embed)
	y := l.zeros(s.Tokens() * s.Embed)
	ids := l.ids(s.Tokens(), s.Vocab)
	defer l.free()
	return part{name: PartEmbedding, took: l.best(ctx, func() {
		l.dev.Embed(y, table, ids)
		l.dev.Zero(dtable)
		l.dev.EmbedBackward(dtable, y, ids)
	})}
}

// output measures the last layer with its loss, forward and backward.
func (l *lab) output(ctx context.Context) part {
	s, n := l.shape, l.shape.Tokens()
	bound := 1 / math.Sqrt(float64(s.Hidden))
	x, w, b := l.random(n*s.Hidden, 1), l.random(s.Vocab*s.Hidden, bound), l.random(s.Vocab, bound)
	dx, dw, db := l.zeros(len(x)), l.zeros(len(w)), l.zeros(len(b))
	targets := l.ids(n, s.Vocab)
	defer l.free()
	head := l.dev.NewOutput(compute.OutputShape{N: n, H: s.Hidden, V: s.Vocab})
	defer head.Close()
	took := l.best(ctx, func() { head.ForwardBackward(x, w, b, targets, 1/float32(n), dx, dw, db) })
	return part{name: PartOutput, took: took,
		flops: 6 * float64(s.Hidden) * float64(s.Vocab) * float64(n)}
}

// flat measures what passes over all parameters. Each element of such a pass takes 12 bytes: the
// norm reads the gradient and scaling reads and writes it, and SGD reads both and writes one.
func (l *lab) flat(ctx context.Context) []part {
	n := model.Span(model.Layout(l.shape.config()))
	params, grads := l.random(n, 1), l.random(n, 1)
	defer l.free()
	bytes := 12 * float64(n)
	pass := l.best(ctx, func() { addScaled(l.dev.Threads(), params, grads, 1e-9) })
	triad := ratio(bytes, pass.Seconds())
	clip := part{name: PartClip, bytes: bytes, triad: triad, took: l.best(ctx, func() {
		if l.dev.SumSquares(grads) > 0 {
			l.dev.Scale(grads, -1)
		}
	})}
	u := compute.Update{Optimizer: compute.SGD, Step: 1, LR: 1e-9}
	update := part{name: PartUpdate, bytes: bytes, triad: triad,
		took: l.best(ctx, func() { l.dev.Update(u, params, grads, nil, nil) })}
	return []part{clip, update}
}

// addScaled is y += a x on so many threads: the plainest pass over memory.
func addScaled(threads int, y, x []float32, a float32) {
	var all sync.WaitGroup
	for i := range threads {
		from, to := len(x)*i/threads, len(x)*(i+1)/threads
		all.Go(func() {
			blas32.Axpy(a, blas32.Vector{N: to - from, Inc: 1, Data: x[from:to]},
				blas32.Vector{N: to - from, Inc: 1, Data: y[from:to]})
		})
	}
	all.Wait()
}
