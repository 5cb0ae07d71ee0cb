package linktest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"rondo/allreduce"
)

// Benchmark times all-reduces over links of form, one per operation, and tree sums of eight leaves.
// It reports the bus bandwidth as nccl-tests defines it, 2(N-1)/N * bytes / time, in GB/s, and the
// allocations of all ranks.
func Benchmark(b *testing.B, form func(b *testing.B, world int) []Node) {
	for _, world := range []int{2, 4} {
		for _, size := range []struct {
			name  string
			bytes int
		}{{"64KiB", 64 << 10}, {"1MiB", 1 << 20}, {"16MiB", 16 << 20}} {
			b.Run(fmt.Sprintf("world=%d/%s", world, size.name), func(b *testing.B) {
				benchmark(b, form(b, world), size.bytes, false)
			})
		}
		b.Run(fmt.Sprintf("world=%d/16MiB/tree", world), func(b *testing.B) {
			benchmark(b, form(b, world), 16<<20, true)
		})
	}
}

func benchmark(b *testing.B, nodes []Node, bytes int, tree bool) {
	rings := Rings(b, nodes, generation, 0, time.Minute)
	sums, ends := make([]allreduce.TreeSum, len(rings)), Deal(len(rings), 8)
	first := 0
	for rank, end := range ends {
		s := allreduce.TreeSum{Ends: ends}
		for range allreduce.Nodes(first, end, 8) {
			s.Parts = append(s.Parts, make([]float32, bytes/4))
		}
		s.Buf = s.Parts[0]
		sums[rank], first = s, end
	}
	reduce := func(n int) {
		for rank, err := range Each(len(rings), func(rank int) error {
			for range n {
				var err error
				if tree {
					err = rings[rank].AllReduceTree(context.Background(), sums[rank])
				} else {
					err = rings[rank].AllReduce(context.Background(), sums[rank].Buf)
				}
				if err != nil {
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
