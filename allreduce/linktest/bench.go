package linktest

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// Benchmark times all-reduces over links of form, one per operation. It reports the bus bandwidth
// as nccl-tests defines it, 2(N-1)/N * bytes / time, in GB/s, and the allocations of all ranks.
func Benchmark(b *testing.B, form func(b *testing.B, world int) []Node) {
	for _, world := range []int{2, 4} {
		for _, size := range []struct {
			name  string
			bytes int
		}{{"64KiB", 64 << 10}, {"1MiB", 1 << 20}, {"16MiB", 16 << 20}} {
			b.Run(fmt.Sprintf("world=%d/%s", world, size.name), func(b *testing.B) {
				benchmark(b, form(b, world), size.bytes)
			})
		}
	}
}

func benchmark(b *testing.B, nodes []Node, bytes int) {
	rings := Rings(b, nodes, generation, 0, time.Minute)
	bufs := make([][]float32, len(rings))
	for rank := range bufs {
		bufs[rank] = make([]float32, bytes/4)
	}
	reduce := func(n int) {
		for rank, err := range Each(len(rings), func(rank int) error {
			for range n {
				if err := rings[rank].AllReduce(context.Background(), bufs[rank]); err != nil {
					return err
				}
			}
			return nil
		}) {
			if err != nil {
				b.Fatalf("rank %d: %v", rank, err)
			}
		}
	}
	reduce(2)
	b.ReportAllocs()
	b.ResetTimer()
	reduce(b.N)
	b.StopTimer()
	share := 2 * float64(len(rings)-1) / float64(len(rings))
	b.ReportMetric(share*float64(bytes)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s-busbw")
}
