package corpus

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

func BenchmarkOpen(b *testing.B) {
	text := strings.Repeat(opticks, 16)
	path := textFile(b, text)
	for _, tokenizer := range allTokenizers {
		b.Run(fmt.Sprintf("%s-%s", tokenizer.Unit, tokenizer.Normalize), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				c := open(b, Config{Source: path, Tokenizer: tokenizer, CacheDir: b.TempDir()})
				c.Close()
			}
		})
	}
	b.Run("cached", func(b *testing.B) {
		cfg := Config{Source: path, Tokenizer: split(Char, None), CacheDir: b.TempDir()}
		b.SetBytes(2 * open(b, cfg).Tokens().Len()) // size of the token file
		for b.Loop() {
			open(b, cfg).Close()
		}
	})
}

func BenchmarkFill(b *testing.B) {
	const lanes, bptt = 32, 35
	for _, sampling := range []Sampling{Sequential, Random} {
		b.Run(string(sampling), func(b *testing.B) {
			c := open(b, Config{
				Source: Opticks, Tokenizer: split(Char, None), CacheDir: b.TempDir(),
			})
			s := sampler(b, SamplerConfig{c.Tokens().Len(), lanes, bptt, 1, sampling})
			r := NewReader(c.Tokens(), s)
			inputs, targets := make([]int32, lanes*bptt), make([]int32, lanes*bptt)
			b.ReportAllocs()
			step := int64(0)
			for b.Loop() {
				if err := r.Fill(b.Context(), step, 0, lanes, inputs, targets); err != nil {
					b.Fatal(err)
				}
				step++
			}
			b.ReportMetric(float64(step*lanes*bptt)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

func BenchmarkMeasure(b *testing.B) {
	for _, unit := range []Unit{Char, Word} {
		b.Run(string(unit), func(b *testing.B) {
			c := open(b, Config{
				Source: Opticks, Tokenizer: split(unit, None), CacheDir: b.TempDir(),
			})
			for b.Loop() {
				_, err := Measure(b.Context(), c.Tokens(), c.Vocabulary(), 10, b.TempDir())
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(c.Tokens().Len())*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

func TestReadingBatchesAllocatesNothing(t *testing.T) {
	const lanes, bptt = 8, 35
	c := open(t, Config{Source: Opticks, Tokenizer: split(Char, None), CacheDir: t.TempDir()})
	inputs, targets := make([]int32, lanes*bptt), make([]int32, lanes*bptt)
	e, err := NewEvaluation(c.Tokens(), lanes, bptt)
	if err != nil {
		t.Fatal(err)
	}
	type batches interface {
		Fill(ctx context.Context, step int64, first, count int, inputs, targets []int32) error
	}
	for name, from := range map[string]batches{
		"sequential": NewReader(c.Tokens(),
			sampler(t, SamplerConfig{c.Tokens().Len(), lanes, bptt, 1, Sequential})),
		"random": NewReader(c.Tokens(),
			sampler(t, SamplerConfig{c.Tokens().Len(), lanes, bptt, 1, Random})),
		"evaluation": e,
	} {
		step := int64(0)
		allocated := testing.AllocsPerRun(50, func() {
			if err := from.Fill(t.Context(), step, 0, lanes, inputs, targets); err != nil {
				t.Fatal(err)
			}
			step++
		})
		if allocated != 0 {
			t.Errorf("%s: %v allocations a step", name, allocated)
		}
	}
}
