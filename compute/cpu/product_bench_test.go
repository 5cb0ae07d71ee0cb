//go:build cgo

package cpu

import (
	"fmt"
	"testing"
	"time"
)

// peak is the best rate, in operations per second, of the product's instruction over a moment.
func (n products) peak() float64 {
	best := 0.0
	for start := time.Now(); time.Since(start) < 50*time.Millisecond; {
		before := time.Now()
		done := n.burn(20000)
		best = max(best, done/time.Since(before).Seconds())
	}
	return best
}

// report gives the fastest run's rate and what part of the peak that is: a shared machine disturbs
// the fastest least.
func (n products) report(b *testing.B, operations float64, run func()) {
	best := time.Hour
	for b.Loop() {
		before := time.Now()
		run()
		best = min(best, time.Since(before))
	}
	rate := operations / best.Seconds()
	b.ReportMetric(rate/1e9, "best-GFLOP/s")
	b.ReportMetric(rate/n.peak(), "of-peak")
}

// onBestKernels runs a benchmark on the best kernels of each precision.
func onBestKernels(b *testing.B, shape string, run func(b *testing.B, n products)) {
	for _, p := range precisions {
		b.Run(fmt.Sprintf("%s/%s", p, shape), func(b *testing.B) {
			best, err := newBackend(1, p, "")
			if err != nil {
				b.Fatal(err)
			}
			defer best.close()
			run(b, products{best.(*native)})
		})
	}
}

// BenchmarkProduct is the product of a step's rows with the panels of an LSTM of that depth.
func BenchmarkProduct(b *testing.B) {
	for _, rows := range []int{32, 64} {
		for _, depth := range []int{256, 512, 1024, 2048} {
			onBestKernels(b, fmt.Sprintf("%dx%d", rows, depth), func(b *testing.B, n products) {
				blocks := depth / blockWidth
				panels := 4 * blocks
				spread := (rows + 8) * blockWidth
				a, w := n.testOperands(b, blocks*spread), n.testOperands(b, panels*depth*blockWidth)
				clear(a.memory)
				clear(w.memory)
				c, memory := allocate(panels * rows * blockWidth)
				b.Cleanup(memory.release)
				operations := 2 * float64(rows*depth*panels*blockWidth)
				n.report(b, operations, func() {
					for i := range panels {
						n.product(rows, c[i*rows*blockWidth:], a, 0, spread, blocks, w,
							i*depth*blockWidth)
					}
				})
			})
		}
	}
}

// BenchmarkOuter is the gradient of a square matrix of 256 over so many rows.
func BenchmarkOuter(b *testing.B) {
	for _, depth := range []int{1120, 4096} {
		onBestKernels(b, fmt.Sprint(depth), func(b *testing.B, n products) {
			const width = 256
			spread := (depth + 8) * blockWidth
			size := width / blockWidth * spread
			d, h := n.testOperands(b, size), n.testOperands(b, size)
			clear(d.memory)
			clear(h.memory)
			c, memory := allocate(width * width)
			b.Cleanup(memory.release)
			n.report(b, 2*float64(depth)*width*width, func() {
				for u := range width / blockWidth {
					n.outers(c[u*blockWidth*width:], width, blockWidth, width, d, u*spread, h,
						spread, depth, false)
				}
			})
		})
	}
}

// BenchmarkOperands makes operands of a state of 32 rows, and panels of a matrix of an LSTM.
func BenchmarkOperands(b *testing.B) {
	const width, rows, gates = 256, 32, 1024
	onBestKernels(b, "32x256, 1024x256", func(b *testing.B, n products) {
		x, memory := allocate(gates * width)
		b.Cleanup(memory.release)
		o := n.testOperands(b, gates*width)
		for name, run := range map[string]func(){
			"rows": func() {
				for j := 0; j < width; j += blockWidth {
					n.putRows(rows, o, j*rows, x[j*rows:], blockWidth, blockWidth)
				}
			},
			"pairs": func() {
				for j := 0; j < width; j += blockWidth {
					n.putPairs(rows, o, j*rows, x[j*rows:], blockWidth, blockWidth)
				}
			},
			"packed-columns": func() {
				for j := 0; j < gates; j += blockWidth {
					n.packColumns(o, j*width, x[j*width:], blockWidth, width, width, width)
				}
			},
			"packed-rows": func() {
				for j := 0; j < width; j += blockWidth {
					n.packRows(o, j*gates, x[j:], gates, width, blockWidth, gates)
				}
			},
		} {
			b.Run(name, func(b *testing.B) {
				best := time.Hour
				for b.Loop() {
					before := time.Now()
					run()
					best = min(best, time.Since(before))
				}
				b.ReportMetric(best.Seconds()*1e6, "best-µs")
			})
		}
	})
}
