package devicetest

import (
	"fmt"
	"math"
	"slices"

	"rondo/compute"
)

// clipping is a case of a Clipper: a gradient of normal numbers times a size, with one element
// replaced in some cases, and a loss.
type clipping struct {
	size float64
	odd  float32 // takes the place of an element, unless it is 0
	by   compute.Clip
	loss float64 // the device's loss, if by has a limit for it
}

func clippings() map[string]clipping {
	nan, inf := math.NaN(), math.Inf(1)
	limit := compute.Clip{Limit: 0.3, Share: 1}
	value := compute.Clip{Limit: 0.3, ByValue: true, Share: 0.7}
	judged := compute.Clip{Limit: 0.3, Share: 0.7, LossLimit: 1e6}
	return map[string]clipping{
		"never":            {1, 0, compute.Clip{Share: 1}, 0},
		"never, a share":   {1, 0, compute.Clip{Share: 0.7}, 0},
		"never, by value":  {1, 0, compute.Clip{ByValue: true, Share: 0.7}, 0},
		"above":            {1, 0, limit, 0},
		"above, a share":   {1, 0, compute.Clip{Limit: 0.3, Share: 0.7}, 0},
		"below":            {1e-6, 0, limit, 0},
		"below, a share":   {1e-6, 0, compute.Clip{Limit: 0.3, Share: 0.7}, 0},
		"zeros":            {0, 0, limit, 0},
		"by value":         {1, 0, compute.Clip{Limit: 0.3, ByValue: true, Share: 1}, 0},
		"by value, share":  {1, 0, value, 0},
		"no number":        {1, float32(nan), limit, 0},
		"infinite":         {1, float32(inf), value, 0},
		"infinite, never":  {1, float32(-inf), compute.Clip{Share: 0.7}, 0},
		"large":            {1, 3e38, limit, 0},
		"loss":             {1, 0, judged, 5},
		"loss too large":   {1, 0, judged, -1e6 - 1e3},
		"loss infinite":    {1, 0, judged, inf},
		"loss no number":   {1, 0, judged, nan},
		"all of it is bad": {1, float32(nan), judged, nan},
	}
}

// expected returns the limited g and the norm, in the contract's arithmetic.
func (c clipping) expected(g []float32, loss float64) (norm float64, limited []float32) {
	norm, limited = math.Sqrt(orderedSquares(g)), slices.Clone(g)
	if c.by.LossLimit > 0 && !(math.Abs(loss) < c.by.LossLimit) {
		norm = math.NaN()
	}
	if norm-norm != 0 {
		return norm, limited
	}
	factor, bound := c.by.Share, float32(math.Inf(1))
	if c.by.Limit > 0 && c.by.ByValue {
		bound = float32(c.by.Limit)
	} else if c.by.Limit > 0 && norm > c.by.Limit {
		factor *= c.by.Limit / norm
	}
	for i, v := range limited {
		limited[i] = min(max(v, -bound), bound) * float32(factor)
	}
	return norm, limited
}

// lossOf is an output layer that has computed something.
func lossOf(r *rig) compute.Output {
	p := newOutputProblem(compute.OutputShape{N: 3, H: 20, V: 1031}, true, r.random)
	o := r.dev.NewOutput(p.shape)
	o.Forward(put(r.dev, p.x), put(r.dev, p.w), put(r.dev, p.b), p.targets)
	return o
}

// testClipper wants the bits of the contract's arithmetic of every case; and an update by every
// optimizer that is the device's own, or none where something is not finite.
func testClipper(r *rig) {
	d, clipper := r.dev, r.dev.NewClipper()
	defer clipper.Close()
	last := lossOf(r)
	defer last.Close()
	for name, c := range clippings() {
		for i, n := range append(lengths(), 1<<17+21) {
			host := narrow(normal(r.random, n, c.size))
			if c.odd != 0 {
				host[n/2] = c.odd
			}
			loss, sum := (*compute.Loss)(nil), 0.0
			if c.by.LossLimit > 0 {
				loss = &compute.Loss{Known: c.loss, Last: last}
				sum = c.loss + last.Sum()
			}
			norm, want := c.expected(host, sum)
			g := upload(d, host)
			clipper.Clip(g, &c.by, loss)
			o := compute.Optimizer(i % (int(compute.Adagrad) + 1))
			testClippedUpdate(r, fmt.Sprintf("%s: optimizer %d of %d", name, o, n), clipper, o, g,
				norm-norm == 0)
			got := clipper.Norm()
			if got != norm && !(norm-norm != 0 && got-got != 0) {
				r.Errorf("%s: the norm of %d is %v, want %v", name, n, got, norm)
			}
			SameBits(r, name, get(d, g), want)
			d.Free(g)
		}
	}
	clipper.Clip(nil, &compute.Clip{Limit: 1, Share: 1}, nil)
	if got := clipper.Norm(); got != 0 {
		r.Errorf("the norm of nothing is %v", got)
	}
}

// testClippedUpdate holds a clipper's update against the device's, or against none.
func testClippedUpdate(r *rig, what string, clipper compute.Clipper, o compute.Optimizer,
	g []float32, done bool) {
	d, u := r.dev, updateOf(o, 3)
	host := narrow(normal(r.random, len(g), 1))
	var two [2][3][]float32 // parameters and slots, of each
	for i := range two {
		for j := range 1 + o.Slots() {
			two[i][j] = upload(d, host)
		}
	}
	got, want := two[0], two[1]
	clipper.Update(&u, got[0], g, got[1], got[2])
	if done {
		d.Update(u, want[0], g, want[1], want[2])
	}
	for j := range 1 + o.Slots() {
		SameBits(r, what, get(d, got[j]), get(d, want[j]))
		d.Free(got[j])
		d.Free(want[j])
	}
}

// testClipperReplay replays a clip and an update, whose numbers change from step to step: they are
// the calls with the same numbers, to the bit, also where a gradient or a loss between them is not
// finite.
func testClipperReplay(r *rig) {
	d, ok := r.dev.(compute.Recorder)
	if !ok {
		r.Skip("this device does not record")
	}
	const n, rule = 1000, compute.AdamW
	host := narrow(normal(r.random, n, 1))
	last := lossOf(r)
	defer last.Close()
	var sides [2]struct {
		clipper      compute.Clipper
		by           compute.Clip
		loss         compute.Loss
		u            compute.Update
		g, p, s1, s2 []float32
	}
	work := func(i int) {
		s := &sides[i]
		s.clipper.Clip(s.g, &s.by, &s.loss)
		s.clipper.Update(&s.u, s.p, s.g, s.s1, s.s2)
	}
	for i := range sides {
		s := &sides[i]
		s.clipper, s.loss.Last, s.u = d.NewClipper(), last, updateOf(rule, 1)
		defer s.clipper.Close()
		s.g, s.p, s.s1, s.s2 = upload(d, host), upload(d, host), d.Alloc(n), d.Alloc(n)
		work(i)
	}
	recording, err := d.Record(func() error { work(1); return nil })
	if err != nil {
		r.Fatal(err)
	}
	defer recording.Close()
	known := []float64{0, 1e3, 0, 0, math.NaN(), -1e6, 5}
	for step := range int64(7) {
		host = narrow(normal(r.random, n, 1))
		if step == 2 {
			host[7] = float32(math.Inf(-1))
		}
		for i := range sides {
			s := &sides[i]
			s.u, s.loss.Known = updateOf(rule, 2+step), known[step]
			s.u.LR = 0.1 / float32(1+step)
			s.by = compute.Clip{Limit: float64(1 + 9*step), ByValue: step%3 == 1, Share: 0.5,
				LossLimit: 1e5}
			d.Upload(s.g, host)
		}
		work(0)
		recording.Replay()
		want, got := &sides[0], &sides[1]
		got.u, got.by = compute.Update{}, compute.Clip{} // which are the caller's again
		a, b := got.clipper.Norm(), want.clipper.Norm()
		finite := step != 2 && step != 4 && step != 5
		if (b-b == 0) != finite || a != b && finite || a-a == 0 && !finite {
			r.Errorf("step %d: the norm is %v, called %v", step, a, b)
		}
		SameBits(r, "the gradient", get(d, got.g), get(d, want.g))
		SameBits(r, "the parameters", get(d, got.p), get(d, want.p))
		SameBits(r, "the moments", append(get(d, got.s1), get(d, got.s2)...),
			append(get(d, want.s1), get(d, want.s2)...))
	}
}
