package model

import (
	"gorgonia.org/gorgonia"

	"rondo/compute"
)

// Pool is how a Labeller reduces the last layer's outputs over an example's steps to one row.
type Pool int

const (
	// PoolNone does not: every token has a label.
	PoolNone Pool = iota
	// PoolLast takes each direction's state after its last step: torch.nn's h_n. The second
	// direction's last step is the example's first.
	PoolLast
	// PoolMean takes the mean over the steps.
	PoolMean
	// PoolMax takes the largest value of each column.
	PoolMax
	// PoolPlaces takes K steps that the input names, with a label for each.
	PoolPlaces
)

// PoolNames returns the names of all ways to pool, in the order of their numbers.
func PoolNames() []string {
	return []string{PoolNone: "none", PoolLast: "last", PoolMean: "mean", PoolMax: "max",
		PoolPlaces: "places"}
}

// ParsePool returns the way to pool whose String is name.
func ParsePool(name string) (Pool, error) {
	at, err := parseName("--pool", name, PoolNames())
	return Pool(at), err
}

// String is the name in --pool.
func (p Pool) String() string { return nameOf("pool", int(p), PoolNames()) }

func (p Pool) known() bool { return p >= 0 && int(p) < len(PoolNames()) }

// pooling is the operator y = pool(x) for x: [T, B, W], y: [1, B, W] or [K, B, W].
type pooling struct {
	dev     compute.Device
	kind    Pool
	T, B    int
	halves  []half // of PoolLast; with PoolPlaces one of all columns
	lengths []int32
	y, dx   *buffer
}

// half is the columns of one direction, and where y takes them from.
type half struct {
	at, width int
	from      []int32 // for each row of y the row of x; -1: there is none
	to        []int32 // for each row of x the row of y that takes it; -1: none
}

// newPooling makes the operator. widths are the directions' columns of x. lengths are the examples'
// lengths, [B], set before a run.
func newPooling(dev compute.Device, kind Pool, lengths []int32, widths []int,
	y, dx *buffer) *pooling {
	s := dx.value.Shape() // [T, B, W]
	p := &pooling{dev: dev, kind: kind, T: s[0], B: s[1], lengths: lengths, y: y, dx: dx}
	if kind == PoolPlaces {
		widths = []int{s[2]}
	}
	if kind == PoolLast || kind == PoolPlaces {
		at := 0
		for _, width := range widths {
			p.halves = append(p.halves, half{at: at, width: width,
				from: make([]int32, y.value.Shape()[0]*p.B), to: make([]int32, p.T*p.B)})
			at += width
		}
	}
	return p
}

// load finds the states of examples with the set lengths: those at these places, or the last ones.
func (p *pooling) load(places []int32) {
	for i, h := range p.halves {
		for row := range h.to {
			h.to[row] = -1
		}
		for row := range h.from {
			b := row % p.B
			step := p.lengths[b] - 1
			if p.kind == PoolPlaces {
				step = places[row]
			} else if i == 1 { // the second direction ends at the example's first step
				step = min(step, 0)
			}
			h.from[row] = -1
			if step >= 0 {
				h.from[row] = step*int32(p.B) + int32(b)
				h.to[h.from[row]] = int32(row)
			}
		}
	}
}

// run computes y.
func (p *pooling) run(x []float32) {
	switch p.kind {
	case PoolMean:
		p.dev.Pool(compute.MeanPool, p.y.flat, x, p.T, p.lengths)
	case PoolMax:
		p.dev.Pool(compute.MaxPool, p.y.flat, x, p.T, p.lengths)
	default:
		p.copyHalves(p.y.flat, x, func(h half) []int32 { return h.from })
	}
}

// backward computes dx.
func (p *pooling) backward(x, dy []float32) {
	switch p.kind {
	case PoolMean:
		p.dev.PoolBackward(compute.MeanPool, p.dx.flat, dy, x, p.y.flat, p.T, p.lengths)
	case PoolMax:
		p.dev.PoolBackward(compute.MaxPool, p.dx.flat, dy, x, p.y.flat, p.T, p.lengths)
	default:
		p.copyHalves(p.dx.flat, dy, func(h half) []int32 { return h.to })
	}
}

// copyHalves sets the rows of dst to those of src that ids names for each half.
func (p *pooling) copyHalves(dst, src []float32, ids func(half) []int32) {
	W := p.dx.value.Shape()[2]
	for _, h := range p.halves {
		p.dev.CopyRows(compute.Columns{X: dst, Stride: W, At: h.at},
			compute.Columns{X: src, Stride: W, At: h.at}, len(ids(h)), h.width, ids(h), false)
	}
}

func (p *pooling) apply(x *gorgonia.Node) (*gorgonia.Node, error) {
	forward := &operator{name: "pool", shape: p.y.value.Shape().Clone(), wrt: []bool{true},
		run: func(in []gorgonia.Value) (gorgonia.Value, error) {
			x, err := floats(in[0], len(p.dx.flat))
			if err != nil {
				return nil, err
			}
			p.run(x)
			return p.y.value, nil
		}}
	forward.gradient = func(in gorgonia.Nodes, y, dy *gorgonia.Node) (gorgonia.Nodes, error) {
		backward := &operator{name: "pool.backward", shape: p.dx.value.Shape().Clone(),
			run: func(in []gorgonia.Value) (gorgonia.Value, error) {
				x, err := floats(in[0], len(p.dx.flat))
				if err != nil {
					return nil, err
				}
				dy, err := floats(in[2], len(p.y.flat))
				if err != nil {
					return nil, err
				}
				p.backward(x, dy)
				return p.dx.value, nil
			}}
		n, err := backward.apply(in[0], y, dy)
		return gorgonia.Nodes{n}, err
	}
	return forward.apply(x)
}
