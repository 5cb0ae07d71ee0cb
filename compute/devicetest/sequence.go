package devicetest

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"rondo/compute"
)

// copyProblem is a CopyRows with all that it reads. The matrices begin offset floats behind an
// aligned address.
type copyProblem struct {
	name             string
	dst, src         compute.Columns // in host memory
	n, width, offset int
	ids              []int32 // some come often and some are negative; nil: the rows in order
	add              bool
}

// copyProblems are widths around those of vectors, from all columns of a matrix and from some, and
// one long enough for several threads.
func copyProblems(random *rand.Rand) []copyProblem {
	var all []copyProblem
	for i, s := range []struct{ width, before, behind, n int }{{1, 0, 0, 1}, {1, 2, 4, 9},
		{16, 16, 0, 5}, {19, 0, 0, 8}, {33, 3, 1, 20}, {64, 0, 64, 7}, {260, 4, 8, 30},
		{1030, 1, 0, 150}} {
		stride := s.before + s.width + s.behind
		for trial := range 8 {
			p := copyProblem{n: s.n, width: s.width, offset: (i + trial) % 2, add: trial&1 != 0}
			p.dst = compute.Columns{X: narrow(normal(random, (s.n+1)*stride, 1)),
				Stride: stride, At: s.before}
			p.src = compute.Columns{X: narrow(normal(random, s.n*s.width, 1)), Stride: s.width}
			if trial&2 != 0 {
				p.src = compute.Columns{X: narrow(normal(random, (s.n+2)*stride, 1)),
					Stride: stride, At: s.behind}
			}
			if trial&4 != 0 {
				p.ids = ids(random, s.n, p.src.Rows()+1)
				for j := range p.ids {
					p.ids[j]--
				}
			}
			p.name = fmt.Sprintf("CopyRows of %d+%d+%d by %d, case %d", s.before, s.width,
				s.behind, s.n, trial)
			all = append(all, p)
		}
	}
	return all
}

// solve is the definition.
func (p *copyProblem) solve() []float32 {
	dst := slices.Clone(p.dst.X)
	for i := range p.n {
		id := i
		if p.ids != nil {
			id = int(p.ids[i])
		}
		for j := range p.width {
			value := float32(0)
			if id >= 0 {
				value = p.src.X[id*p.src.Stride+p.src.At+j]
			}
			to := &dst[i*p.dst.Stride+p.dst.At+j]
			if !p.add {
				*to = value
			} else if id >= 0 {
				*to += value
			}
		}
	}
	return dst
}

func (p *copyProblem) run(dev compute.Device) []Result {
	dst, src, given := p.dst, p.src, slices.Clone(p.ids)
	dst.X, src.X = behind(dev, p.dst.X, p.offset), behind(dev, p.src.X, p.offset)
	dev.CopyRows(dst, src, p.n, p.width, given, p.add)
	clear(given) // which are the caller's again
	return []Result{{p.name, "dst", get(dev, dst.X)}}
}

// behind is a copy of x in device memory, offset floats behind an aligned address.
func behind(dev compute.Device, x []float32, offset int) []float32 {
	y := dev.Alloc(offset + len(x))[offset:]
	dev.Upload(y, x)
	return y
}

// testCopyRows expects exact bits in the copied or added part, and the rest of dst unchanged.
func testCopyRows(r *rig) {
	for _, p := range copyProblems(r.random) {
		SameBits(r, p.name, p.run(r.dev)[0].Values, p.solve())
	}
	nothing := compute.Columns{Stride: 3}
	r.dev.CopyRows(nothing, nothing, 0, 3, nil, false)
	r.dev.CopyRows(nothing, nothing, 0, 2, []int32{}, true)
	x := compute.Columns{X: junk(r.dev, 6), Stride: 3}
	r.dev.CopyRows(x, compute.Columns{Stride: 7, At: 2}, 2, 3, []int32{-1, -1}, false)
	SameBits(r, "rows of no matrix", get(r.dev, x.X), make([]float32, 6))
}

// poolProblem is a Pool and the gradient of its result.
type poolProblem struct {
	name     string
	by       compute.Pooling
	steps, h int
	offset   int
	lengths  []int32
	x, dy    []float64
}

func newPoolProblem(by compute.Pooling, steps, h int, lengths []int32,
	random *rand.Rand) *poolProblem {
	lanes := len(lengths)
	return &poolProblem{fmt.Sprintf("Pool %d of %d steps, %d lanes, %d wide", by, steps, lanes, h),
		by, steps, h, random.IntN(2), lengths, normal(random, steps*lanes*h, 1),
		normal(random, lanes*h, 1)}
}

// poolProblems have lengths from none to all steps. One is long enough for several threads.
func poolProblems(random *rand.Rand) []*poolProblem {
	var all []*poolProblem
	for _, by := range []compute.Pooling{compute.MeanPool, compute.MaxPool} {
		for _, s := range []struct{ steps, lanes, h int }{{1, 1, 1}, {3, 2, 5}, {7, 9, 16},
			{12, 5, 33}, {50, 3, 67}, {35, 21, 260}} {
			lengths := ids(random, s.lanes, s.steps+1)
			lengths[0] = int32(s.steps)
			if s.lanes > 1 {
				lengths[1] = 0
			}
			all = append(all, newPoolProblem(by, s.steps, s.h, lengths, random))
		}
	}
	return all
}

// solve is the definition in float64, and its gradient.
func (p *poolProblem) solve() (y, dx []float64) {
	y, dx = make([]float64, len(p.dy)), make([]float64, len(p.x))
	for at := range y {
		length := int(p.lengths[at/p.h])
		largest := 0 // the place of the largest value, by its step
		for t := range length {
			v := p.x[t*len(y)+at]
			y[at] += v / float64(length)
			dx[t*len(y)+at] = p.dy[at] / float64(length)
			if v > p.x[largest*len(y)+at] {
				largest = t
			}
		}
		if p.by == compute.MaxPool && length > 0 {
			for t := range length {
				dx[t*len(y)+at] = 0
			}
			y[at], dx[largest*len(y)+at] = p.x[largest*len(y)+at], p.dy[at]
		}
	}
	return y, dx
}

func (p *poolProblem) run(dev compute.Device) []Result {
	x, dy := behind(dev, narrow(p.x), p.offset), behind(dev, narrow(p.dy), p.offset)
	y, dx := junk(dev, p.offset+len(p.dy))[p.offset:], junk(dev, p.offset+len(p.x))[p.offset:]
	given := slices.Clone(p.lengths)
	dev.Pool(p.by, y, x, p.steps, given)
	clear(given) // which are the caller's again
	copy(given, p.lengths)
	if p.by == compute.MeanPool {
		dev.PoolBackward(p.by, dx, dy, nil, nil, p.steps, given)
	} else {
		dev.PoolBackward(p.by, dx, dy, x, y, p.steps, given)
	}
	clear(given)
	return []Result{{p.name, "y", get(dev, y)}, {p.name, "dx", get(dev, dx)}}
}

// testPool wants the bits of the largest values and of their gradient. A mean is exact to 1e-6 of
// its terms' size, which is 1.
func testPool(r *rig) {
	for _, p := range poolProblems(r.random) {
		y, dx := p.solve()
		got := p.run(r.dev)
		for i, want := range [][]float64{y, dx} {
			if p.by == compute.MaxPool {
				SameBits(r, p.name+" "+got[i].Tensor, got[i].Values, narrow(want))
				continue
			}
			for j, v := range want {
				e := math.Abs(float64(got[i].Values[j]) - v)
				if !(e <= 1e-6*math.Max(1, math.Abs(v))) || v == 0 && e != 0 {
					r.Fatalf("%s: %s[%d] is %v, want %v", p.name, got[i].Tensor, j,
						got[i].Values[j], v)
				}
			}
		}
	}
}

// testPoolOrder gives the gradient of equal values to the first, and one gradient to a column with
// NaN, whose result is NaN. A NaN behind a row's length has no effect.
func testPoolOrder(r *rig) {
	d, nan := r.dev, float32(math.NaN())
	x := upload(d, []float32{2, 1, nan, -1, 5, 3, 5, -2, 5, nan, 9, -3, nan, nan, nan, nan})
	y, dx, dy := junk(d, 4), junk(d, 16), upload(d, []float32{1, 2, 3, 4})
	lengths := []int32{3} // of 4 steps
	d.Pool(compute.MaxPool, y, x, 4, lengths)
	SameBits(r, "the largest", get(d, y), []float32{5, nan, nan, -1})
	d.PoolBackward(compute.MaxPool, dx, dy, x, y, 4, lengths)
	SameBits(r, "the first of the largest", get(d, dx), []float32{0, 2, 3, 4, 1, 0, 0, 0, 0, 0, 0,
		0, 0, 0, 0, 0})
	d.Pool(compute.MeanPool, y, x, 4, lengths)
	SameBits(r, "means", get(d, y), []float32{4, nan, nan, -2})
	d.Pool(compute.MeanPool, nil, nil, 4, lengths)
	d.PoolBackward(compute.MeanPool, nil, nil, nil, nil, 4, lengths)
}

// sequenceShapes are CopyRows, Pools and attentions that do not fit.
func (r *rig) sequenceShapes(x func(n int) []float32) map[string]func() {
	d := r.dev
	copied := func(dst, src compute.Columns, n, width int, ids ...int32) func() {
		return func() { d.CopyRows(dst, src, n, width, ids, false) }
	}
	four := compute.Columns{X: x(8), Stride: 4}
	pool := func(by compute.Pooling, y, x, steps int, lengths ...int32) func() {
		return func() {
			d.Pool(by, make([]float32, y), make([]float32, x), steps, lengths)
		}
	}
	all := map[string]func(){
		"CopyRows' dst rows": copied(four, compute.Columns{X: x(12), Stride: 4}, 3, 4),
		"CopyRows' src rows": copied(compute.Columns{X: x(12), Stride: 4}, four, 3, 4),
		"CopyRows' columns":  copied(four, compute.Columns{X: x(8), Stride: 4, At: 2}, 2, 3),
		"CopyRows' At":       copied(compute.Columns{X: x(8), Stride: 4, At: -1}, four, 2, 3),
		"CopyRows' stride":   copied(compute.Columns{X: x(8)}, four, 1, 0),
		"CopyRows' matrix":   copied(four, compute.Columns{X: x(7), Stride: 4}, 1, 4),
		"CopyRows' width":    copied(four, compute.Columns{X: x(8), Stride: 4}, 1, -1),
		"CopyRows' ids":      copied(four, compute.Columns{X: x(8), Stride: 4}, 2, 4, 0),
		"CopyRows' id":       copied(four, compute.Columns{X: x(8), Stride: 4}, 2, 4, 0, 2),
		"Pool":               pool(2, 2, 4, 2, 1, 1),
		"Pool's lanes":       pool(compute.MeanPool, 0, 0, 2),
		"Pool's steps":       pool(compute.MeanPool, 2, 0, 0, 1, 1),
		"Pool's y":           pool(compute.MeanPool, 3, 6, 2, 1, 1),
		"Pool's x":           pool(compute.MeanPool, 2, 6, 2, 1, 1),
		"Pool's length":      pool(compute.MaxPool, 2, 4, 2, 1, 3),
		"Pool's last length": pool(compute.MaxPool, 2, 4, 2, 1, -1),
		"PoolBackward's x": func() {
			d.PoolBackward(compute.MaxPool, x(4), x(2), nil, x(2), 2, []int32{1})
		},
		"PoolBackward's y": func() {
			d.PoolBackward(compute.MaxPool, x(4), x(2), x(4), x(1), 2, []int32{1})
		},
	}
	maps.Copy(all, r.attentionShapes())
	maps.Copy(all, r.normShapes())
	return all
}
