package corpus

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

func sampler(t testing.TB, cfg SamplerConfig) *Sampler {
	t.Helper()
	s, err := NewSampler(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// shapes returns small configs, among them the shortest possible texts.
func shapes() []SamplerConfig {
	var all []SamplerConfig
	for _, lanes := range []int{1, 2, 3, 8} {
		for _, bptt := range []int{1, 2, 5, 7} {
			least := int64((lanes + 1) * bptt)
			for _, tokens := range []int64{least, least + 1, 2*least + 3, 500} {
				for _, sampling := range []Sampling{Sequential, Random} {
					all = append(all, SamplerConfig{tokens, lanes, bptt, 42, sampling})
				}
			}
		}
	}
	return all
}

func TestNoTokenIsATargetTwiceInAnEpoch(t *testing.T) {
	for _, cfg := range shapes() {
		s := sampler(t, cfg)
		for epoch := range int64(6) {
			seen := make([]bool, cfg.Tokens)
			least := cfg.Tokens
			for i := range s.SegmentsPerEpoch() {
				step := epoch*s.SegmentsPerEpoch() + i
				if s.Epoch(step) != epoch {
					t.Fatalf("%+v: step %d is in epoch %d; want %d", cfg, step,
						s.Epoch(step), epoch)
				}
				for lane := range cfg.Lanes {
					from := s.Offset(step, lane)
					least = min(least, from)
					for target := from + 1; target <= from+int64(cfg.BPTT); target++ {
						if target >= cfg.Tokens || seen[target] {
							t.Fatalf("%+v: token %d is a target twice or beyond the end, at "+
								"step %d, lane %d", cfg, target, step, lane)
						}
						seen[target] = true
					}
				}
			}
			if cfg.Sampling == Sequential && least >= int64(cfg.BPTT) {
				t.Errorf("%+v: epoch %d begins at token %d", cfg, epoch, least)
			}
		}
	}
}

// TestOffsetsFollowTheBook compares with the textbook's two iterators. They are written as in the
// book, but take the offset that the epoch drew.
func TestOffsetsFollowTheBook(t *testing.T) {
	for _, cfg := range shapes() {
		s := sampler(t, cfg)
		for epoch := range int64(4) {
			first := epoch * s.SegmentsPerEpoch()
			var got []int64
			for step := first; step < first+s.SegmentsPerEpoch(); step++ {
				for lane := range cfg.Lanes {
					got = append(got, s.Offset(step, lane))
				}
			}
			if cfg.Sampling == Sequential {
				skip := got[0]
				want := bookSequential(cfg, skip, s.SegmentsPerEpoch())
				if !slices.Equal(got, want) {
					t.Fatalf("%+v, epoch %d: %v; want %v", cfg, epoch, got, want)
				}
				continue
			}
			skip := got[0] % int64(cfg.BPTT)
			windows := bookWindows(cfg, skip)
			for _, offset := range got {
				if _, ok := slices.BinarySearch(windows, offset); !ok {
					t.Fatalf("%+v, epoch %d: %d is none of the windows %v", cfg, epoch, offset,
						windows)
				}
			}
		}
	}
}

// bookSequential returns the starts of every lane's segments, step by step.
func bookSequential(cfg SamplerConfig, skip, steps int64) []int64 {
	usable := (cfg.Tokens - skip - 1) / int64(cfg.Lanes) * int64(cfg.Lanes)
	positions := make([]int64, usable)
	for i := range positions {
		positions[i] = skip + int64(i)
	}
	rows := slices.Collect(slices.Chunk(positions, int(usable)/cfg.Lanes))
	var starts []int64
	for i := range steps {
		for _, row := range rows {
			starts = append(starts, row[i*int64(cfg.BPTT)])
		}
	}
	return starts
}

// bookWindows returns the starts of the windows that the book shuffles.
func bookWindows(cfg SamplerConfig, skip int64) []int64 {
	var starts []int64
	for i := range (cfg.Tokens - skip - 1) / int64(cfg.BPTT) {
		starts = append(starts, skip+i*int64(cfg.BPTT))
	}
	return starts
}

func TestTheTextbooksEpoch(t *testing.T) {
	for _, sampling := range []Sampling{Sequential, Random} {
		s := sampler(t, SamplerConfig{10000, 32, 35, 1, sampling})
		if s.SegmentsPerEpoch() != 8 {
			t.Errorf("%s: %d steps; want 8", sampling, s.SegmentsPerEpoch())
		}
		for step := range int64(20) {
			want := sampling == Random || step%8 == 0
			if s.Reset(step) != want {
				t.Errorf("%s: the state of step %d is reset: %v", sampling, step, !want)
			}
		}
	}
}

// TestSamplesNeverChange pins the samples of a seed: a resumed job must read the same tokens,
// whichever version resumes it.
func TestSamplesNeverChange(t *testing.T) {
	for _, c := range []struct {
		sampling Sampling
		want     string
	}{
		{Sequential, "[21 9662 56 9697 15 9687 50 9722 46 9718]"},
		{Random, "[2996 5936 7406 8001 5965 7925 9115 7365 8866 5156]"},
	} {
		s := sampler(t, SamplerConfig{10000, 32, 35, 7, c.sampling})
		var got []int64
		for _, step := range []int64{0, 1, 8, 9, 4001} {
			got = append(got, s.Offset(step, 0), s.Offset(step, 31))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v; want %s", c.sampling, got, c.want)
		}
	}
}

func TestEpochsAndSeedsDiffer(t *testing.T) {
	const epochs = 2000
	for _, sampling := range []Sampling{Sequential, Random} {
		cfg := SamplerConfig{5000, 4, 10, 3, sampling}
		s := sampler(t, cfg)
		skips := make([]int, cfg.BPTT)
		for epoch := range int64(epochs) {
			skips[s.Offset(epoch*s.SegmentsPerEpoch(), 0)%10]++
		}
		// Each offset is expected 200 times; six standard deviations are 80.
		for skip, n := range skips {
			if n < 120 || n > 280 {
				t.Errorf("%s: offset %d in %d of %d epochs", sampling, skip, n, epochs)
			}
		}
		cfg.Seed++
		other := sampler(t, cfg)
		same := 0
		for step := range s.SegmentsPerEpoch() * 20 {
			if s.Offset(step, 1) == other.Offset(step, 1) {
				same++
			}
		}
		if share := float64(same) / float64(s.SegmentsPerEpoch()*20); share > 0.5 {
			t.Errorf("%s: two seeds agree in %.0f%% of the steps", sampling, 100*share)
		}
	}
}

func TestATextTooShortSaysWhatItNeeds(t *testing.T) {
	for _, cfg := range shapes() {
		cfg.Tokens = int64((cfg.Lanes+1)*cfg.BPTT) - 1
		_, err := NewSampler(cfg)
		if err == nil {
			t.Errorf("%+v: no error", cfg)
			continue
		}
		for _, want := range []string{"--batch", "--bptt", "--max-tokens", "\x20" +
			fmt.Sprint((cfg.Lanes+1)*cfg.BPTT) + ":", fmt.Sprint(cfg.Tokens, " tokens")} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %q does not say %q", cfg, err, want)
			}
		}
	}
	for _, cfg := range []SamplerConfig{
		{100, 0, 1, 1, Random}, {100, 1, 0, 1, Random}, {100, MaxLanes + 1, 1, 1, Random},
		{100, 1, MaxBPTT + 1, 1, Random}, {100, 1, 1, 1, "shuffled"}, {0, 1, 1, 1, Random},
	} {
		if _, err := NewSampler(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

func TestPermutationsAreBijections(t *testing.T) {
	for n := uint64(1); n < 300; n++ {
		p := NewPermutation(n, mix(n))
		seen := make([]bool, n)
		for i := range n {
			image := p.At(i)
			if image >= n || seen[image] {
				t.Fatalf("n %d: %d goes to %d, which is taken or too great", n, i, image)
			}
			seen[image] = true
		}
	}
	// In a huge domain the images must lie in the domain and differ.
	huge := NewPermutation(1<<62+12345, 9)
	seen := map[uint64]bool{}
	for i := range uint64(10000) {
		image := huge.At(i)
		if image >= huge.n || seen[image] {
			t.Fatalf("%d goes to %d", i, image)
		}
		seen[image] = true
	}
}

// TestPermutationsLookRandom tests each element's position, and each pair of neighbours, for a
// uniform distribution, by a chi-squared test over many keys.
func TestPermutationsLookRandom(t *testing.T) {
	for _, n := range []uint64{2, 3, 5, 16, 17, 31} {
		const keys = 4000
		places := make([]float64, n*n)
		pairs := make([]float64, n*n)
		for key := range uint64(keys) {
			p := NewPermutation(n, mix(key))
			for i := range n {
				places[i*n+p.At(i)]++
				pairs[p.At(i)*n+p.At((i+1)%n)]++
			}
		}
		check := func(what string, cells []float64, expected float64, degrees float64) {
			var chi2 float64
			for _, c := range cells {
				chi2 += (c - expected) * (c - expected) / expected
			}
			// The statistic's mean is the degrees of freedom, its variance twice that.
			if limit := degrees + 6*math.Sqrt(2*degrees); chi2 > limit {
				t.Errorf("n %d: chi-squared of %s is %.1f, beyond %.1f", n, what, chi2, limit)
			}
		}
		f := float64(n)
		check("places", places, keys/f, (f-1)*(f-1))
		if n > 2 {
			apart := slices.Clone(pairs[:0])
			for i, c := range pairs {
				if uint64(i)/n != uint64(i)%n {
					apart = append(apart, c)
				} else if c != 0 {
					t.Errorf("n %d: an element follows itself", n)
				}
			}
			check("pairs", apart, keys/(f-1), f*(f-1))
		}
	}
}

func TestReaderIsTimeMajorAndTheSameForAllSplits(t *testing.T) {
	ids := make(IDs, 700)
	for i := range ids {
		ids[i] = int32(i)
	}
	const lanes, bptt = 6, 5
	for _, sampling := range []Sampling{Sequential, Random} {
		s := sampler(t, SamplerConfig{int64(len(ids)), lanes, bptt, 1, sampling})
		r := NewReader(ids, s)
		for step := range s.SegmentsPerEpoch() * 2 {
			for _, cuts := range [][]int{{0, 6}, {0, 1, 6}, {0, 2, 3, 4, 6}} {
				for i, first := range cuts[:len(cuts)-1] {
					count := cuts[i+1] - first
					inputs, targets := make([]int32, bptt*count), make([]int32, bptt*count)
					err := r.Fill(context.Background(), step, first, count, inputs, targets)
					if err != nil {
						t.Fatal(err)
					}
					for k := range inputs {
						want := int32(s.Offset(step, first+k%count)) + int32(k/count)
						if inputs[k] != want || targets[k] != want+1 {
							t.Fatalf("%s, step %d, lanes %d+%d, place %d: %d, %d; want %d",
								sampling, step, first, count, k, inputs[k], targets[k], want)
						}
					}
				}
			}
		}
	}
}

func TestEvaluationCoversEveryTokenOnce(t *testing.T) {
	for _, n := range []int{2, 3, 10, 97, 100} {
		ids := make(IDs, n)
		for i := range ids {
			ids[i] = int32(i)
		}
		for _, lanes := range []int{1, 2, 3, 7, 128} {
			for _, bptt := range []int{1, 2, 5, 200} {
				e, err := NewEvaluation(ids, lanes, bptt)
				if err != nil {
					t.Fatal(err)
				}
				seen := make([]int, n)
				last := slices.Repeat([]int32{-1}, lanes)
				inputs, targets := make([]int32, bptt*lanes), make([]int32, bptt*lanes)
				for segment := range e.Segments() {
					if err := e.Fill(t.Context(), segment, 0, lanes, inputs, targets); err != nil {
						t.Fatal(err)
					}
					for k, target := range targets {
						if target == Padding {
							if inputs[k] != 0 {
								t.Fatalf("padding has input %d", inputs[k])
							}
							continue
						}
						seen[target]++
						if inputs[k] != target-1 {
							t.Fatalf("target %d has input %d", target, inputs[k])
						}
						if before := last[k%lanes]; before >= 0 && before != inputs[k] {
							t.Fatalf("lane %d goes from %d to %d", k%lanes, before, inputs[k])
						}
						last[k%lanes] = target
					}
				}
				want := append([]int{0}, slices.Repeat([]int{1}, n-1)...)
				if !slices.Equal(seen, want) || e.Targets() != int64(n-1) {
					t.Fatalf("%d tokens, %d lanes of %d: targets %v", n, lanes, bptt, seen)
				}
				if e.Reset(0) != true || e.Reset(1) != false {
					t.Fatal("the state is carried on from the first segment alone")
				}
			}
		}
	}
	for _, c := range []struct {
		tokens      IDs
		lanes, bptt int
	}{{IDs{1}, 1, 1}, {IDs{}, 1, 1}, {IDs{1, 2}, 0, 1}, {IDs{1, 2}, 1, 0}} {
		if _, err := NewEvaluation(c.tokens, c.lanes, c.bptt); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
}

func TestSplitTakesTheTail(t *testing.T) {
	ids := IDs{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	for _, c := range []struct {
		fraction float64
		cut      int
	}{{0, 10}, {0.1, 9}, {0.25, 8}, {0.99, 1}} {
		train, validation, err := Split(ids, c.fraction)
		if err != nil {
			t.Fatal(err)
		}
		if got := all(t, train); !slices.Equal(got, []int32(ids[:c.cut])) {
			t.Errorf("%v: train %v", c.fraction, got)
		}
		if got := all(t, validation); !slices.Equal(got, []int32(ids[c.cut:])) {
			t.Errorf("%v: validation %v", c.fraction, got)
		}
	}
	for _, bad := range []float64{-0.1, 1, math.NaN(), math.Inf(1)} {
		if _, _, err := Split(ids, bad); err == nil {
			t.Errorf("%v: no error", bad)
		}
	}
}
