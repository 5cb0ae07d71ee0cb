package model

import (
	"math/rand/v2"
	"testing"
	"time"

	"rondo/compute"
)

// timedProducts is a device that measures the time of its products.
type timedProducts struct {
	compute.Device
	spent time.Duration
}

func (d *timedProducts) Gemm(transA, transB bool, m, n, k int, alpha float32, a, b []float32,
	beta float32, c []float32) {
	start := time.Now()
	d.Device.Gemm(transA, transB, m, n, k, alpha, a, b, beta, c)
	d.spent += time.Since(start)
}

// BenchmarkTree computes 32 trees of 20 words, forward and backward. products is the share of the
// time that the device's matrix products take, which bounds what the rest can gain.
func BenchmarkTree(b *testing.B) {
	for cell, name := range TreeCellNames() {
		b.Run(name, func(b *testing.B) {
			c := TreeConfig{Cell: TreeCell(cell), Vocab: 10000, Embed: 64, Hidden: 128, Labels: 5}
			device := &timedProducts{Device: newDevice(b)}
			tree, err := NewTree(c, device)
			if err != nil {
				b.Fatal(err)
			}
			defer tree.Close()
			var in Trees
			rng := rand.New(rand.NewPCG(1, 2))
			for range 32 {
				grow(&in, rng, 20, 2, c)
			}
			p, err := tree.NewPass(len(in.Children))
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Backward(in, 1, Hooks{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(in.Children)*b.N)/b.Elapsed().Seconds(), "nodes/s")
			b.ReportMetric(device.spent.Seconds()/b.Elapsed().Seconds(), "products")
		})
	}
}
