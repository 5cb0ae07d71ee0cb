package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"rondo/compute"
	"rondo/compute/devicetest"
)

func randoms(d *Device, n int, random *rand.Rand) []float32 {
	x := d.Alloc(n)
	for i := range x {
		x[i] = float32(random.NormFloat64())
	}
	return x
}

// gemmShapes are past the rows, the depth and the columns that go through a product at once, and
// few of one with many of the others.
var gemmShapes = []struct{ m, n, k int }{
	{333, 34, 517}, {4, 2083, 530}, {70, 2049, 31}, {1, 40, 1100}, {40, 1, 1100}, {300, 3, 5},
}

// TestGemmParts holds products of several parts against float64, and to the same bits whatever the
// number of threads.
func TestGemmParts(t *testing.T) {
	random := newRandom(t)
	for _, p := range precisions {
		compared := devicetest.NewComparison(t, devicetest.BoundsOf(p))
		for i, s := range gemmShapes {
			for trans := range 4 {
				transA, transB := trans&1 != 0, trans&2 != 0
				host := newDevice(t, "", Config{Threads: 1})
				a, b := randoms(host, s.m*s.k, random), randoms(host, s.k*s.n, random)
				c := randoms(host, s.m*s.n, random)
				alpha, beta := float32(1.25), float32((i+trans)%3)-0.5
				want := wide(c)
				plainRows[float64](p).gemm(transA, transB, s.m, s.n, s.k, float64(alpha), wide(a),
					wide(b), float64(beta), want)
				for _, isa := range isas(p) {
					var alone []float32
					for threads := 1; threads <= 5; threads += 2 {
						d := newDevice(t, isa, Config{Threads: threads, Precision: p})
						got := d.Alloc(len(c))
						d.Upload(got, c)
						d.Gemm(transA, transB, s.m, s.n, s.k, alpha, a, b, beta, got)
						what := fmt.Sprintf("%s of %d threads, %+v, transposed %v %v", isa,
							threads, s, transA, transB)
						if alone == nil {
							alone = got
							compared.Tensor(what, isa, got, want)
							continue
						}
						for j, v := range alone {
							if math.Float32bits(got[j]) != math.Float32bits(v) {
								t.Fatalf("%s: [%d] is %v, with one thread %v", what, j, got[j], v)
							}
						}
					}
				}
			}
		}
		compared.End()
	}
}

// BenchmarkGemm is a projection forward (rows times a transposed weight), backward to its input and
// to its weight: rows, inputs, outputs.
func BenchmarkGemm(b *testing.B) {
	shapes := []struct{ n, h, e int }{{1120, 256, 128}, {1120, 256, 1024}, {4096, 2048, 1024}}
	for _, s := range shapes {
		for _, c := range []struct {
			name           string
			transA, transB bool
			m, n, k        int
		}{
			{"forward", false, true, s.n, s.e, s.h}, {"input", false, false, s.n, s.h, s.e},
			{"weight", true, false, s.e, s.h, s.n},
		} {
			for _, p := range precisions {
				b.Run(fmt.Sprintf("%s/%d-%d-%d/%v", c.name, s.n, s.h, s.e, p), func(b *testing.B) {
					benchmarkGemm(b, p, c.transA, c.transB, c.m, c.n, c.k)
				})
			}
		}
	}
}

func benchmarkGemm(b *testing.B, p compute.Precision, transA, transB bool, m, n, k int) {
	d := newDevice(b, "", Config{Threads: 2, Precision: p})
	x, y, z := d.Alloc(m*k), d.Alloc(k*n), d.Alloc(m*n)
	for i := range x {
		x[i] = float32(i%7) - 3
	}
	for i := range y {
		y[i] = float32(i%5) - 2
	}
	d.Gemm(transA, transB, m, n, k, 1, x, y, 0, z)
	b.ResetTimer()
	best := time.Hour
	for range b.N {
		before := time.Now()
		d.Gemm(transA, transB, m, n, k, 1, x, y, 0, z)
		best = min(best, time.Since(before))
	}
	b.ReportMetric(2*float64(m)*float64(n)*float64(k)/best.Seconds()/1e9, "best-GFLOP/s")
}
