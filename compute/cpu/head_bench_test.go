package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"rondo/compute"
)

// BenchmarkOutput is the output layer, forward and backward. The best metrics are of the fastest
// call, which a shared machine disturbs least; GFLOP/s counts the three products of a kept logit.
// workspace-MB is what the layer allocates, peak-MB that and every tensor of the call.
func BenchmarkOutput(b *testing.B) {
	for _, p := range precisions {
		for threads := 1; threads <= 2; threads++ {
			for _, s := range []compute.OutputShape{
				{N: 1120, H: 256, V: 28}, {N: 1120, H: 1024, V: 28}, {N: 1120, H: 256, V: 1000},
				{N: 1120, H: 2048, V: 1000}, {N: 1120, H: 256, V: 10_000},
				{N: 4096, H: 512, V: 10_000}, {N: 4096, H: 1024, V: 10_000},
				{N: 4096, H: 2048, V: 10_000}, {N: 1120, H: 256, V: 50_000},
				{N: 1120, H: 1024, V: 50_000}, {N: 1120, H: 256, V: 250_000},
			} {
				name := fmt.Sprintf("%s/threads=%d/N=%d/H=%d/V=%d", p, threads, s.N, s.H, s.V)
				b.Run(name, func(b *testing.B) {
					benchmarkOutput(b, newDevice(b, "", Config{Threads: threads, Precision: p}), s)
				})
			}
		}
	}
}

func benchmarkOutput(b *testing.B, d *Device, s compute.OutputShape) {
	random := rand.New(rand.NewPCG(1, 2))
	x, w, bias := randoms(d, s.N*s.H, random), randoms(d, s.V*s.H, random), d.Alloc(s.V)
	dx, dw, db := d.Alloc(len(x)), d.Alloc(len(w)), d.Alloc(len(bias))
	targets := make([]int32, s.N)
	for i := range targets {
		targets[i] = int32(random.IntN(s.V))
	}
	o := d.newOutput(s, outputRows(s))
	defer o.Close()
	best := time.Hour
	for b.Loop() {
		before := time.Now()
		o.ForwardBackward(x, w, bias, targets, 1/float32(s.N), dx, dw, db)
		best = min(best, time.Since(before))
	}
	_, peak := d.Bytes()
	b.ReportMetric(float64(s.N)/best.Seconds(), "best-tokens/s")
	b.ReportMetric(6*float64(s.N)*float64(s.H)*float64(s.V)/best.Seconds()/1e9, "best-GFLOP/s")
	b.ReportMetric(float64(o.workspace.bytes)/1e6, "workspace-MB")
	b.ReportMetric(float64(peak)/1e6, "peak-MB")
}
