package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"rondo/compute"
)

// Elementwise runs all operations but products, on vectors and rows long enough for several threads
// or blocks, and returns their results.
func Elementwise(dev compute.Device, random *rand.Rand) []Result {
	var all []Result
	for _, n := range []int{1, 33, 1000, 1<<17 + 77} {
		c := results{dev: dev, problem: fmt.Sprintf("elementwise %d", n)}
		draw := func(n int) []float32 { return put(dev, normal(random, n, 1)) }
		for o := compute.SGD; o <= compute.Adagrad; o++ {
			p, g, s1, s2 := draw(n), draw(n), dev.Alloc(n), dev.Alloc(n)
			for step := range int64(3) {
				dev.Update(updateOf(o, step+1), p, g, s1, s2)
			}
			name := fmt.Sprintf(" of optimizer %d", o)
			c.add("parameters"+name, p)
			c.add("slot 1"+name, s1)
			c.add("slot 2"+name, s2)
		}
		x, y := draw(n), draw(n)
		dev.Add(y, x)
		dev.Scale(y, float32(dev.SumSquares(x)))
		clipper, update := dev.NewClipper(), updateOf(compute.SGD, 1)
		clipper.Clip(y, &compute.Clip{Limit: 1, Share: 0.7}, nil)
		clipper.Clip(y, &compute.Clip{Limit: 1e-3, ByValue: true, Share: 1}, nil)
		clipper.Update(&update, x, y, nil, nil)
		clipper.Close()
		c.add("sum, scale, limits", y)
		c.add("update by what is limited", x)
		dropped := junk(dev, n)
		dev.Dropout(dropped, x, 1, 0.3, []uint64{random.Uint64()})
		c.add("dropout", dropped)
		table, rows := draw(40), draw(8*n)
		of := ids(random, n, 5)
		dev.EmbedBackward(table, rows, of)
		c.add("embedding's gradient", table)
		dev.Embed(rows, table, of)
		dev.AddBias(rows, table[:8])
		c.add("rows", rows)
		all = append(all, c.all...)
	}
	for _, p := range copyProblems(random) {
		all = append(all, p.run(dev)...)
	}
	for _, p := range poolProblems(random) {
		all = append(all, p.run(dev)...)
	}
	return all
}

// testElementwise wants the bits of float32 arithmetic: one operation an element leaves no choice.
func testElementwise(r *rig) {
	d := r.dev
	for _, n := range lengths() {
		x, y := narrow(normal(r.random, n, 1)), narrow(normal(r.random, n, 1))
		x[n/2] = float32(math.NaN())
		added, scaled := slices.Clone(y), slices.Clone(x)
		for i, v := range x {
			added[i] = y[i] + v
			scaled[i] = v * 0.3
		}
		dx, dy := upload(d, x), upload(d, y)
		d.Add(dy, dx)
		SameBits(r, "Add", get(d, dy), added)
		d.Scale(dx, 0.3)
		SameBits(r, "Scale", get(d, dx), scaled)
	}
	d.Add(nil, nil)
	d.Scale(nil, 2)
	d.Zero(nil)
}

// testRows gathers rows, and adds them up in the order in which they come; rows may come often.
func testRows(r *rig) {
	d := r.dev
	for _, s := range []struct{ tokens, width, n int }{{5, 19, 4}, {1, 1, 1}, {3, 64, 200},
		{400, 33, 70}, {7, 1030, 40}} {
		host, of := narrow(normal(r.random, s.tokens*s.width, 1)), ids(r.random, s.n, s.tokens)
		table, y := upload(d, host), junk(d, s.n*s.width)
		row := func(x []float32, i int) []float32 { return x[i*s.width : (i+1)*s.width] }
		var want []float32
		for _, id := range of {
			want = append(want, row(host, int(id))...)
		}
		given := slices.Clone(of)
		d.Embed(y, table, given)
		clear(given) // which are the caller's again
		SameBits(r, "Embed", get(d, y), want)

		dy, sum := narrow(normal(r.random, s.n*s.width, 1)), slices.Clone(host)
		for i, id := range of {
			for j, v := range row(dy, i) {
				row(sum, int(id))[j] += v
			}
		}
		copy(given, of)
		d.EmbedBackward(table, upload(d, dy), given)
		clear(given)
		SameBits(r, "EmbedBackward", get(d, table), sum)

		bias := narrow(normal(r.random, s.width, 1))
		for i := range want {
			want[i] += bias[i%s.width]
		}
		d.AddBias(y, upload(d, bias))
		SameBits(r, "AddBias", get(d, y), want)
	}
}

// testDropout expects the mask of compute.DropoutKeep, whatever the other lanes, and from any step
// of the segment on.
func testDropout(r *rig) {
	d := r.dev
	for _, p := range []float32{0, 0.3, 0.5, 1} {
		for _, h := range []int{1, 5, 16, 33, 260} {
			const steps = 4
			keys := []uint64{r.random.Uint64(), r.random.Uint64(), r.random.Uint64()}
			host := narrow(normal(r.random, steps*len(keys)*h, 1))
			x, y := upload(d, host), junk(d, len(host))
			given := slices.Clone(keys)
			d.Dropout(y, x, steps, p, given)
			clear(given) // which are the caller's again
			whole := get(d, y)
			for i, v := range host {
				row, want := i/h, float32(0)
				if compute.DropoutKeep(keys[row%len(keys)], row/len(keys)*h+i%h, p) {
					want = v / (1 - p)
				}
				e := math.Abs(float64(whole[i] - want))
				if !(e <= 0x1p-22*math.Abs(float64(want))) {
					r.Fatalf("p %v, h %d: [%d] is %v, want %v", p, h, i, whole[i], want)
				}
			}
			lane := len(keys) * h // floats of a step
			for b := range keys { // from the third step on, each lane alone
				var part, want []float32
				for t := 2; t < steps; t++ {
					part = append(part, host[t*lane+b*h:][:h]...)
					want = append(want, whole[t*lane+b*h:][:h]...)
				}
				alone := upload(d, part)
				d.Dropout(alone, alone, steps-2, p, []uint64{compute.DropoutShift(keys[b], 2*h)})
				SameBits(r, "a part of a lane, in place", get(d, alone), want)
			}
		}
	}
}

// updateOf returns an update's arguments in these tests.
func updateOf(o compute.Optimizer, step int64) compute.Update {
	return compute.Update{Optimizer: o, Step: step, LR: 0.1, Momentum: 0.9, Beta1: 0.9,
		Beta2: 0.999, Rho: 0.99, Epsilon: 1e-8, WeightDecay: 0.01}
}

// updated is a parameter and its slots after an update, by torch.optim's definitions.
func updated(u compute.Update, p, g, s1, s2 float64) (_, _, _ float64) {
	lr, mu, rho, eps := float64(u.LR), float64(u.Momentum), float64(u.Rho), float64(u.Epsilon)
	beta1, beta2, step := float64(u.Beta1), float64(u.Beta2), float64(u.Step)
	if decay := float64(u.WeightDecay); u.Optimizer == compute.AdamW {
		p -= lr * decay * p
	} else {
		g += decay * p
	}
	switch u.Optimizer {
	case compute.SGD:
		return p - lr*g, 0, 0
	case compute.Momentum:
		s1 = mu*s1 + g
		return p - lr*s1, s1, 0
	case compute.Nesterov:
		s1 = mu*s1 + g
		return p - lr*(g+mu*s1), s1, 0
	case compute.RMSProp:
		if u.Held == 0 {
			s1 = rho*s1 + (1-rho)*g*g
		}
		return p - lr*g/(math.Sqrt(s1)+eps), s1, 0
	case compute.Adagrad:
		s1 += g * g
		return p - lr*g/(math.Sqrt(s1)+eps), s1, 0
	}
	took := step
	if u.Held > 0 {
		took = float64(u.Held)
	} else {
		s2 = beta2*s2 + (1-beta2)*g*g
	}
	s1 = beta1*s1 + (1-beta1)*g
	m, v := s1/(1-math.Pow(beta1, step)), s2/(1-math.Pow(beta2, took))
	return p - lr*m/(math.Sqrt(v)+eps), s1, s2
}

// testUpdate compares every optimizer with its definition over some updates. The second moment is
// Held in the last one. The bound covers the rounding of all updates.
func testUpdate(r *rig) {
	d := r.dev
	for o := compute.SGD; o <= compute.Adagrad; o++ {
		for _, n := range lengths() {
			wp, g := normal(r.random, n, 1), normal(r.random, n, 1)
			for i, v := range g { // Adam divides by it, so decay must not leave next to nothing
				g[i] = float64(float32(v + math.Copysign(0.2, v)))
			}
			w1, w2 := make([]float64, n), make([]float64, n)
			p, dg := put(d, wp), put(d, g)
			var slots [2][]float32
			for i := range o.Slots() {
				slots[i] = d.Alloc(n)
			}
			for step := range int64(6) {
				u := updateOf(o, step+1)
				if step >= 4 {
					u.Held = 4
				}
				d.Update(u, p, dg, slots[0], slots[1])
				for i := range wp {
					wp[i], w1[i], w2[i] = updated(u, wp[i], g[i], w1[i], w2[i])
				}
			}
			for i, x := range [][]float32{p, slots[0], slots[1]} {
				for j, got := range get(d, x) {
					want := [][]float64{wp, w1, w2}[i][j]
					if e := math.Abs(float64(got) - want); !(e <= 3e-6*(1+math.Abs(want))) {
						r.Fatalf("optimizer %d of %d: tensor %d [%d] is %v, want %v", o, n, i, j,
							got, want)
					}
				}
			}
		}
	}
}
