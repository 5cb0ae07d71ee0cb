package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"rondo/compute"
)

// flatLengths are around the widths of vectors, where teams begin to share, and past a block of
// squares.
var flatLengths = []int{1, 3, 15, 16, 17, 67, 1<<15 + 5, 1<<17 + 21}

// flatRun is what every flat operation makes of the same numbers.
func flatRun(d *Device, n int) map[string][]float32 {
	const width, tokens = 3, 11
	random := rand.New(rand.NewPCG(uint64(n), 1))
	draw := func(n int) []float32 {
		x := d.Alloc(n)
		for i := range x {
			x[i] = float32(random.NormFloat64() * math.Exp(4*random.NormFloat64()))
		}
		return x
	}
	copied := slices.Clone[[]float32]
	got := map[string][]float32{}
	x, y := draw(n), draw(n)
	squares := math.Float64bits(d.SumSquares(x))
	got["SumSquares"] = []float32{math.Float32frombits(uint32(squares >> 32)),
		math.Float32frombits(uint32(squares))}
	d.Add(y, x)
	got["Add"] = copied(y)
	d.Scale(y, 0.3)
	got["Scale"] = copied(y)
	clipper := d.NewClipper()
	defer clipper.Close()
	clipper.Clip(y, &compute.Clip{Limit: 0.5, ByValue: true, Share: 1}, nil)
	got["Clip by value"] = copied(y)
	clipper.Clip(y, &compute.Clip{Limit: 0.1, Share: 0.7}, nil)
	got["Clip by norm"] = copied(y)
	rows := d.Alloc(n * width)
	table, ids := draw(tokens*width), make([]int32, n)
	for i := range ids {
		ids[i] = int32(random.IntN(tokens))
	}
	d.Embed(rows, table, ids)
	got["Embed"] = copied(rows)
	d.AddBias(rows, table[:width])
	got["AddBias"] = copied(rows)
	d.EmbedBackward(table, rows, ids)
	got["EmbedBackward"] = copied(table)
	d.Dropout(rows, rows, n, 0.4, []uint64{7, 8, 9})
	got["Dropout"] = copied(rows)
	wide := compute.Columns{X: draw(tokens * (width + 2)), Stride: width + 2, At: 1}
	ids[0] = -1
	for _, add := range []bool{false, true} {
		d.CopyRows(compute.Columns{X: rows, Stride: width}, wide, n, width, ids, add)
		got[fmt.Sprintf("CopyRows, add %t", add)] = copied(rows)
	}
	pooled, steps := d.Alloc(2*n), draw(6*n)
	for by := compute.MeanPool; by <= compute.MaxPool; by++ {
		d.Pool(by, pooled, steps, 3, []int32{2, 3})
		got[fmt.Sprintf("Pool %d", by)] = copied(pooled)
		gradient := d.Alloc(6 * n)
		d.PoolBackward(by, gradient, pooled, steps, pooled, 3, []int32{2, 3})
		got[fmt.Sprintf("PoolBackward %d", by)] = gradient
	}
	s1, s2 := d.Alloc(n), d.Alloc(n)
	for o := compute.SGD; o <= compute.Adagrad; o++ {
		clear(s1)
		clear(s2)
		for step := range 3 {
			u := compute.Update{Optimizer: o, Step: int64(step + 1), LR: 0.1, Momentum: 0.9,
				Beta1: 0.9, Beta2: 0.999, Rho: 0.99, Epsilon: 1e-8, WeightDecay: 0.01}
			d.Update(u, x, y, s1, s2)
		}
		got[fmt.Sprintf("optimizer %d", o)] = slices.Concat(x, s1, s2)
	}
	return got
}

// TestFlatBits holds the flat operations to the bits of the pure-Go arithmetic, whatever the
// instruction set, the precision and the number of threads: replicas on different machines must
// not drift apart.
func TestFlatBits(t *testing.T) {
	for _, n := range flatLengths {
		d := newDevice(t, "", Config{Threads: 1})
		d.backend = flatReference{d.backend}
		want := flatRun(d, n)
		onDevices(t, func(t *testing.T, d *Device) {
			got := flatRun(d, n)
			for what, x := range want {
				for i, v := range x {
					if a, b := math.Float32bits(got[what][i]), math.Float32bits(v); a != b {
						t.Fatalf("%s of %d: [%d] has bits %#x, want %#x (%v, %v)", what, n, i, a, b,
							got[what][i], v)
					}
				}
			}
		})
	}
}

// flatReference is a backend whose flat operations are the reference's.
type flatReference struct{ backend }

func (flatReference) add(y, x []float32)                          { refAdd(y, x) }
func (flatReference) addBias(x, b []float32)                      { addRow(x, b) }
func (flatReference) scale(x []float32, a float32)                { refScale(x, a) }
func (flatReference) clamp(x []float32, limit float32)            { refClamp(x, limit) }
func (flatReference) sumSquares(x []float32) float64              { return refSumSquares(x) }
func (flatReference) embed(y, table []float32, ids []int32)       { refEmbed(y, table, ids) }
func (flatReference) embedBackward(dt, dy []float32, ids []int32) { refEmbedBackward(dt, dy, ids) }
func (flatReference) dropout(y, x []float32, h int, p float32, keys []uint64) {
	refDropout(y, x, h, p, keys)
}
func (flatReference) copyRows(dst, src compute.Columns, n, width int, ids []int32, add bool) {
	refCopyRows(dst, src, n, width, ids, add)
}
func (flatReference) pool(p compute.Pooling, y, x []float32, lengths []int32) {
	refPool(p, y, x, lengths)
}
func (flatReference) poolBackward(p compute.Pooling, dx, dy, x, y []float32, lengths []int32) {
	refPoolBackward(p, dx, dy, x, y, lengths)
}
func (flatReference) update(u compute.Update, c correction, params, grads, s1, s2 []float32) {
	refUpdate(u, c, params, grads, s1, s2)
}

// triad is that of the STREAM benchmark (McCalpin 1995): z = x + a y.
func triad(threads int, z, x, y []float32, a float32) {
	var team sync.WaitGroup
	share := (len(x) + threads - 1) / threads
	for first := 0; first < len(x); first += share {
		end := min(first+share, len(x))
		team.Go(func() {
			x, y, z := x[first:end], y[first:end], z[first:end]
			for i := range z {
				z[i] = x[i] + a*y[i]
			}
		})
	}
	team.Wait()
}

// BenchmarkFlat is the flat operations over 10M elements, too many for most caches, beside a triad.
// GB/s counts the bytes that each must read and write.
func BenchmarkFlat(b *testing.B) {
	const n, width = 10_000_000, 500
	for _, threads := range []int{1, 2} {
		d := newDevice(b, "", Config{Threads: threads})
		x, y, s1, s2 := d.Alloc(n), d.Alloc(n), d.Alloc(n), d.Alloc(n)
		for i := range x {
			x[i], y[i] = float32(i%7), float32(i%5)
		}
		ids := make([]int32, n/width)
		for i := range ids {
			ids[i] = int32(i * 7919 % len(ids))
		}
		update := func(o compute.Optimizer) func() {
			return func() {
				d.Update(compute.Update{Optimizer: o, Step: 1, LR: 1e-9, Beta1: 0.9, Beta2: 0.999,
					Epsilon: 1e-8}, x, y, s1, s2)
			}
		}
		for _, c := range []struct {
			name  string
			bytes float64 // an element
			run   func()
		}{
			{"triad", 12, func() { triad(threads, s1, x, y, 3) }},
			{"sgd", 12, update(compute.SGD)},
			{"adam", 28, update(compute.Adam)},
			{"add", 12, func() { d.Add(x, y) }},
			{"scale", 8, func() { d.Scale(x, 1) }},
			{"sum-squares", 4, func() { d.SumSquares(x) }},
			{"dropout", 8, func() { d.Dropout(y, x, n/width, 0.5, []uint64{1}) }},
			{"embed", 8, func() { d.Embed(y, x, ids) }},
			{"embed-backward", 12, func() { d.EmbedBackward(y, x, ids) }},
		} {
			b.Run(fmt.Sprintf("%s/%d", c.name, threads), func(b *testing.B) {
				best := time.Hour
				for range b.N {
					before := time.Now()
					c.run()
					best = min(best, time.Since(before))
				}
				b.ReportMetric(c.bytes*n/best.Seconds()/1e9, "best-GB/s")
			})
		}
	}
}
