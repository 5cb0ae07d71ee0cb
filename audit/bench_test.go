package audit

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"rondo/corpus"
)

// BenchmarkProve proves the logs of two workers with 16 lanes each, one step per iteration.
func BenchmarkProve(b *testing.B) {
	batches := corpus.SamplerConfig{Tokens: 1 << 30, Lanes: 32, BPTT: 35, Seed: 1,
		Sampling: corpus.Sequential}
	sampler, err := corpus.NewSampler(batches)
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	inputs := make([]int32, 16*35)
	for rank, name := range []string{"a", "b"} {
		log, err := Open(dir, name, sampler.Offset)
		if err != nil {
			b.Fatal(err)
		}
		err = log.Ring(Ring{Run: 1, Generation: 1, World: 2, Batches: batches})
		for step := int64(1); step <= int64(b.N); step++ {
			err = errors.Join(err, log.Intend(step, 0, 16*rank, 16, inputs),
				log.Commit(Commit{Step: step}))
		}
		if err := errors.Join(err, log.Close()); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	b.ReportAllocs()
	b.ResetTimer()
	report, err := Prove(b.Context(), os.DirFS(dir), nil, nil)
	if err != nil || !report.Sound() || report.Last != int64(b.N) {
		b.Fatal(report, err)
	}
}
