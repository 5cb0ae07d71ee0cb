package bench

import (
	"context"
	"math"
	"time"

	"rondo/compute"
	"rondo/model"
)

// KernelRow is the measurement of one part of a training step.
type KernelRow struct {
	Case
	Device  string `json:"device"`
	Part    string `json:"part"`
	Seconds Figure `json:"seconds"` // in a step; the median of several
	Share   Figure `json:"share"`   // of the step
	// TokensPerSecond is the rate if the step had this part alone.
	TokensPerSecond Figure `json:"tokens_per_second"`
	// GFLOPS counts products; 0 where there are none. PeakGFLOPS is the highest that the Meter has
	// seen, and OfPeak their quotient.
	GFLOPS     Figure  `json:"gflops"`
	PeakGFLOPS float64 `json:"peak_gflops"`
	OfPeak     Figure  `json:"of_peak"`
	// GBPerSecond counts the bytes that a pass over memory reads and writes. AddGBPerSecond is the
	// rate of the device's y += x over as many bytes. Both are 0 for other parts. InCache: the
	// memory fits into the machine's largest cache, so that memory bounds neither.
	GBPerSecond    float64 `json:"gb_per_second"`
	AddGBPerSecond float64 `json:"add_gb_per_second"`
	InCache        bool    `json:"in_cache"`
}

// The parts of a step.
const (
	PartRecurrentForward  = "recurrent product forward"
	PartRecurrentBackward = "recurrent product backward"
	PartInputForward      = "input product forward"
	PartInputBackward     = "input product backward"
	PartWeightGradient    = "weight gradient"
	PartGates             = "gates and the rest"
	// PartLayers is the sum of the rows above. A device that computes layers side by side takes
	// less, as a step of Train shows.
	PartLayers    = "recurrent layers, one by one"
	PartEmbedding = "embedding"
	PartOutput    = "output layer and loss"
	PartClip      = "clip by norm"
	PartUpdate    = "update (sgd)"
	PartStep      = "sum"
)

// Kernels measures the parts of a step, each alone, for about window. The parts depend on the shape
// alone. The inside of a layer is found by comparison: see takeApart.
func (m *Meter) Kernels(ctx context.Context, dev Device, s Shape, window time.Duration) (
	[]KernelRow, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if err := (Windows{Length: window, Count: 1}).Validate(); err != nil {
		return nil, err
	}
	l := newLab(m, dev, s, window)
	defer l.free()
	var parts []part
	for _, measure := range []func(context.Context) ([]part, error){l.layers, l.embedding, l.output,
		l.flat} {
		m.look(dev)
		more, err := measure(ctx)
		if err != nil {
			return nil, err // the measurement is incomplete
		}
		parts = append(parts, more...)
	}
	m.look(dev)
	step := part{name: PartStep}
	for _, p := range parts {
		if !p.inLayers {
			step.add(p)
		}
	}
	var rows []KernelRow
	for _, p := range append(parts, step) {
		rows = append(rows, m.row(dev, s, p, step))
	}
	return rows, nil
}

// row returns the row of a part of a step.
func (m *Meter) row(dev Device, s Shape, p, step part) KernelRow {
	r := KernelRow{Case: newCase(s, dev), Device: dev.Name(), Part: p.name,
		PeakGFLOPS: m.peak(dev) / 1e9, GBPerSecond: ratio(p.bytes, p.took) / 1e9,
		AddGBPerSecond: p.pass / 1e9, InCache: p.bytes > 0 && p.extent <= m.cache}
	if p.hidden() {
		unknown := Figure(math.NaN())
		r.Seconds, r.Share, r.TokensPerSecond = unknown, unknown, unknown
		if p.flops > 0 {
			r.GFLOPS, r.OfPeak = unknown, unknown
		}
		return r
	}
	r.Seconds, r.Share = Figure(p.took), Figure(ratio(p.took, step.took))
	r.TokensPerSecond = Figure(ratio(float64(s.Tokens()), p.took))
	r.GFLOPS = Figure(ratio(p.flops, p.took) / 1e9)
	r.OfPeak = Figure(ratio(float64(r.GFLOPS), r.PeakGFLOPS))
	return r
}

// part is a part of a step: its time and its work.
type part struct {
	name         string
	inLayers     bool    // and so in the time of PartLayers
	took         float64 // seconds; 0: hidden
	flops, bytes float64
	pass         float64 // bytes a second of y += x
	extent       int64   // bytes of the memory that is passed over
}

// hidden reports whether the part is below the noise; its time is in the other parts.
func (p part) hidden() bool { return p.took <= 0 }

func (p *part) add(q part) {
	p.took += q.took
	p.flops += q.flops
}

// layers measures the stack: its parts and the whole.
func (l *lab) layers(ctx context.Context) ([]part, error) {
	known := map[int]apart{} // by the width of the input
	names := []string{PartRecurrentForward, PartRecurrentBackward, PartInputForward,
		PartInputBackward, PartWeightGradient, PartGates}
	parts := make([]part, len(names))
	whole := part{name: PartLayers}
	for layer := range l.shape.Layers {
		width := l.shape.inputWidth(layer)
		a, measured := known[width]
		if !measured {
			var err error
			if a, err = l.layerParts(ctx, width); err != nil {
				return nil, err
			}
			known[width] = a
		}
		recurrent, input := l.recurrentFlops(), l.inputFlops(width)
		for i, add := range []part{
			{took: a.recurrentForward, flops: recurrent},
			{took: a.recurrentBackward, flops: recurrent},
			{took: a.inputForward, flops: input}, {took: a.inputBackward, flops: input},
			{took: a.weightGradient, flops: recurrent + input}, {took: a.gates},
		} {
			parts[i].add(add)
			whole.add(add)
		}
	}
	kept := make([]part, 0, len(parts)+1)
	for i, p := range parts {
		p.name, p.inLayers = names[i], true
		if p.flops > 0 || p.name == PartGates { // a one-hot layer has no product with its input
			kept = append(kept, p)
		}
	}
	return append(kept, whole), nil
}

// recurrentFlops are those of h W_hh^T over a segment, of d W_hh and of d^T h.
func (l *lab) recurrentFlops() float64 {
	h := float64(l.shape.Hidden)
	return 2 * float64(l.shape.Cell.Gates()) * h * h * float64(l.shape.Tokens())
}

// inputFlops are those of x W_ih^T over a segment, of d W_ih and of d^T x.
func (l *lab) inputFlops(width int) float64 {
	return l.recurrentFlops() * float64(width) / float64(l.shape.Hidden)
}

// embedding measures the rows' way into x, and their gradients' way out of it.
func (l *lab) embedding(ctx context.Context) ([]part, error) {
	s := l.shape
	if s.Embed == 0 {
		return nil, nil
	}
	table, dtable := l.random(s.Vocab*s.Embed, 1), l.zeros(s.Vocab*s.Embed)
	y := l.zeros(s.Tokens() * s.Embed)
	ids := l.ids(s.Tokens(), s.Vocab)
	defer l.free()
	took, err := l.rounds(ctx, func() {
		l.dev.Embed(y, table, ids)
		l.dev.Zero(dtable)
		l.dev.EmbedBackward(dtable, y, ids)
	})
	if err != nil {
		return nil, err
	}
	return []part{{name: PartEmbedding, took: Median(took[0])}}, nil
}

// output measures the last layer with its loss, forward and backward.
func (l *lab) output(ctx context.Context) ([]part, error) {
	s, n := l.shape, l.shape.Tokens()
	bound := 1 / math.Sqrt(float64(s.Hidden))
	x, w, b := l.random(n*s.Hidden, 1), l.random(s.Vocab*s.Hidden, bound), l.random(s.Vocab, bound)
	dx, dw, db := l.zeros(len(x)), l.zeros(len(w)), l.zeros(len(b))
	targets := l.ids(n, s.Vocab)
	defer l.free()
	head := l.dev.NewOutput(compute.OutputShape{N: n, H: s.Hidden, V: s.Vocab})
	defer head.Close()
	took, err := l.rounds(ctx, func() {
		head.ForwardBackward(x, w, b, targets, 1/float32(n), dx, dw, db)
	})
	if err != nil {
		return nil, err
	}
	flops := 6 * float64(s.Hidden) * float64(s.Vocab) * float64(n)
	l.did(flops, took[0])
	return []part{{name: PartOutput, took: Median(took[0]), flops: flops}}, nil
}

// flat measures the passes over all parameters. An element of a pass takes 12 bytes: the norm reads
// the gradient, and scaling reads and writes it; SGD, like y += x, reads two values and writes one.
func (l *lab) flat(ctx context.Context) ([]part, error) {
	n := model.Span(model.Layout(l.shape.config()))
	params, grads := l.random(n, 1), l.random(n, 1)
	defer l.free()
	u, by := compute.Update{Optimizer: compute.SGD, Step: 1, LR: 1e-9}, compute.Clip{Share: -1}
	clipper := l.dev.NewClipper()
	defer clipper.Close()
	took, err := l.rounds(ctx,
		func() { l.dev.Add(params, grads) },
		func() { clipper.Clip(grads, &by, nil) },
		func() { clipper.Update(&u, params, grads, nil, nil) })
	if err != nil {
		return nil, err
	}
	const perElement = 12
	bytes := perElement * float64(n)
	both := part{bytes: bytes, pass: ratio(bytes, Median(took[0])), extent: 8 * int64(n)}
	clip, update := both, both
	clip.name, clip.took = PartClip, Median(took[1])
	update.name, update.took = PartUpdate, Median(took[2])
	return []part{clip, update}, nil
}
