package examples

import (
	"fmt"
	"strings"
	"testing"
)

// sentences makes a labelled file of n texts of 5 to 34 words.
func sentences(b *testing.B, n int) string {
	var file strings.Builder
	for i := range n {
		fmt.Fprintf(&file, "label%d\t", i%4)
		for j := range 5 + i*7%30 {
			fmt.Fprintf(&file, "word%d ", (i*31+j*j)%5000)
		}
		file.WriteByte('\n')
	}
	return write(b, "a.tsv", file.String())
}

const benchmarked = 100000

func BenchmarkOpen(b *testing.B) {
	path := sentences(b, benchmarked)
	b.Run("built", func(b *testing.B) {
		for b.Loop() {
			open(b, config(b, Labelled, path))
		}
		b.ReportMetric(benchmarked*float64(b.N)/b.Elapsed().Seconds(), "examples/s")
	})
	b.Run("cached", func(b *testing.B) {
		cfg := config(b, Labelled, path)
		open(b, cfg)
		for b.Loop() {
			open(b, cfg)
		}
		b.ReportMetric(benchmarked*float64(b.N)/b.Elapsed().Seconds(), "examples/s")
	})
}

// BenchmarkBatches deals and reads the segments of a worker that has all lanes.
func BenchmarkBatches(b *testing.B) {
	const lanes = 64
	set := open(b, config(b, Labelled, sentences(b, benchmarked)))
	dealt := batches(b, set, BatchesConfig{Lanes: lanes, Seed: 1})
	tokens, label := make([]int32, 100), make([]int32, 1)
	b.ReportAllocs()
	segment, count := int64(0), 0
	for b.Loop() {
		for lane := range lanes {
			i := dealt.Example(segment, lane)
			if i < 0 {
				continue
			}
			if err := set.Read(i, tokens[:set.Length(i)], label); err != nil {
				b.Fatal(err)
			}
			count++
		}
		segment++
	}
	b.ReportMetric(float64(count)/b.Elapsed().Seconds(), "examples/s")
}
