package examples

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// deal returns the examples of an epoch's segments, a row each.
func deal(b *Batches, epoch int64) [][]int64 {
	var all [][]int64
	for index := range b.SegmentsPerEpoch() {
		row := make([]int64, b.Config().Lanes)
		for lane := range row {
			row[lane] = b.Example(epoch*b.SegmentsPerEpoch()+index, lane)
		}
		all = append(all, row)
	}
	return all
}

func batches(t testing.TB, s *Set, cfg BatchesConfig) *Batches {
	t.Helper()
	b, err := NewBatches(s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func evaluation(t testing.TB, s *Set, lanes int) *Batches {
	t.Helper()
	b, err := NewEvaluation(s, lanes)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Every epoch and every evaluation has each example once, and says of it what Read says.
func TestAnEpochHasEachExampleOnce(t *testing.T) {
	const most = 3000
	random := rand.New(rand.NewPCG(1, 2))
	all := lengths(t, most, func(int) int { return 1 + random.IntN(30) })
	for round := range 60 {
		n := 1 + random.Int64N(most)
		if round < 20 {
			n = 1 + int64(round)
		}
		s := all.Range(random.Int64N(most-n+1), n)
		if n > 100 && round%2 == 0 {
			train, _, err := s.Split(0.3)
			if err != nil {
				t.Fatal(err)
			}
			s = train
		}
		lanes := 1 + random.IntN(50)
		for name, b := range map[string]*Batches{
			"train": batches(t, s, BatchesConfig{Lanes: lanes, Seed: random.Uint64()}),
			"eval":  evaluation(t, s, lanes),
		} {
			if want := (s.Len() + int64(lanes) - 1) / int64(lanes); b.SegmentsPerEpoch() != want {
				t.Fatalf("%s: %d segments of %d lanes for %d examples; want %d", name,
					b.SegmentsPerEpoch(), lanes, s.Len(), want)
			}
			seen := make([]int, s.Len())
			epoch := random.Int64N(5)
			for index, row := range deal(b, epoch) {
				segment := epoch*b.SegmentsPerEpoch() + int64(index)
				if b.Epoch(segment) != epoch {
					t.Fatalf("segment %d is of epoch %d", segment, b.Epoch(segment))
				}
				checkSegment(t, b, s, segment, row)
				for _, example := range row {
					if example >= 0 {
						seen[example]++
					}
				}
			}
			if i := slices.IndexFunc(seen, func(times int) bool { return times != 1 }); i >= 0 {
				t.Fatalf("%s, %d lanes: example %d of %d is dealt %d times", name, lanes, i,
					s.Len(), seen[i])
			}
		}
	}
}

// checkSegment holds Steps, TargetSteps and Targets against what is read.
func checkSegment(t *testing.T, b *Batches, s *Set, segment int64, row []int64) {
	t.Helper()
	steps, targetSteps := 0, 0
	sums := []int64{0} // of the targets of the first lanes
	for _, example := range row {
		sum := sums[len(sums)-1]
		if example >= 0 {
			tokens, targets := make([]int32, s.Length(example)), make([]int32, s.Targets(example))
			if err := s.Read(example, tokens, targets); err != nil {
				t.Fatal(err)
			}
			steps, targetSteps = max(steps, len(tokens)), max(targetSteps, len(targets))
			sum += int64(len(targets))
		}
		sums = append(sums, sum)
	}
	if b.Steps(segment) != steps || b.TargetSteps(segment) != targetSteps {
		t.Fatalf("segment %d: %d steps, %d targets; want %d and %d", segment, b.Steps(segment),
			b.TargetSteps(segment), steps, targetSteps)
	}
	for first := range sums {
		for last := first; last < len(sums); last++ {
			if got := b.Targets(segment, first, last-first); got != sums[last]-sums[first] {
				t.Fatalf("segment %d, lanes [%d, %d): %d targets; want %d", segment, first, last,
					got, sums[last]-sums[first])
			}
		}
	}
}

// What a lane reads does not depend on who asks, in which order, or on what was asked before.
func TestTheOrderIsAPureFunction(t *testing.T) {
	const lanes, epochs = 4, 3
	s := lengths(t, 3000, func(i int) int { return 1 + i*i%37 })
	cfg := BatchesConfig{Lanes: lanes, Seed: 7}
	b := batches(t, s, cfg)
	var want [][]int64
	for epoch := range int64(epochs) {
		want = append(want, deal(b, epoch)...)
	}
	random := rand.New(rand.NewPCG(3, 4))
	workers := []*Batches{batches(t, s, cfg), batches(t, s, cfg), b}
	for range 3000 {
		segment, lane := random.IntN(len(want)), random.IntN(lanes)
		at := workers[random.IntN(len(workers))]
		if got := at.Example(int64(segment), lane); got != want[segment][lane] {
			t.Fatalf("segment %d, lane %d: example %d; want %d", segment, lane, got,
				want[segment][lane])
		}
	}
}

// A worker reads a segment's examples while it reads the next ones ahead, perhaps of another
// window.
func TestTwoWindowsAreKept(t *testing.T) {
	s := lengths(t, 100, func(int) int { return 1 })
	b := batches(t, s, BatchesConfig{Lanes: 4}) // 25 segments in windows of 3
	for _, segment := range []int64{0, 3, 0, 3} {
		b.Example(segment, 0)
	}
	first, second := &b.kept[0].examples[0], &b.kept[1].examples[0]
	b.kept[0].examples[0], b.kept[1].examples[0] = 1000, 2000 // lost if they are made again
	for _, segment := range []int64{2, 5, 1, 4} {
		b.Example(segment, 0)
	}
	if kept := []uint32{*first, *second}; !slices.Equal(kept, []uint32{1000, 2000}) {
		t.Errorf("windows are made again: %d", kept)
	}
}

// The order of a seed must not change: a resumed job goes on with it. The 17 segments are in
// windows of 2.
func TestTheOrderNeverChanges(t *testing.T) {
	s := lengths(t, 34, func(i int) int { return 1 + i%3 })
	for name, c := range map[string]struct {
		b    *Batches
		want []int64
	}{
		"train": {batches(t, s, BatchesConfig{Lanes: 2, Seed: 1}), []int64{21, 30, 25, 8, 27, 12,
			10, 32, 22, 23, 15, 19, 3, 16, 31, 13, 24, 4, 7, 20, 17, 29, 28, 26, 33, 9, 11, 5, 1,
			14, 18, 6, 0, 2}},
		"eval": {evaluation(t, s.Range(0, 9), 2), []int64{0, 3, 6, 1, 4, 7, 2, 5, 8, -1}},
	} {
		if got := slices.Concat(deal(c.b, 1)...); !slices.Equal(got, c.want) {
			t.Errorf("%s: %d; want %d", name, got, c.want)
		}
	}
}

func TestEpochsAndSeedsDiffer(t *testing.T) {
	s := lengths(t, 500, func(int) int { return 1 })
	b := batches(t, s, BatchesConfig{Lanes: 8, Seed: 1})
	other := batches(t, s, BatchesConfig{Lanes: 8, Seed: 2})
	for name, pair := range map[string][2][][]int64{
		"epochs": {deal(b, 0), deal(b, 1)},
		"seeds":  {deal(b, 0), deal(other, 0)},
	} {
		same := 0
		for i, row := range pair[0] {
			for lane, example := range row {
				if pair[1][i][lane] == example {
					same++
				}
			}
		}
		if same > 10 { // one place of 500 on average
			t.Errorf("two %s have %d of 500 places in common", name, same)
		}
	}
}

// Examples of one length stand in no order of the file, which may be sorted by label.
func TestEqualLengthsAreMixed(t *testing.T) {
	s := lengths(t, 4096, func(int) int { return 5 })
	for index, row := range deal(batches(t, s, BatchesConfig{Lanes: 32}), 0) {
		half := 0
		for _, example := range row {
			if example < 2048 {
				half++
			}
		}
		if half < 3 || half > 29 {
			t.Errorf("segment %d has %d of 32 examples from the file's first half", index, half)
		}
	}
}

// Sorting makes padding little where an epoch has many segments.
func TestPaddingIsLittle(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	s := lengths(t, 40000, func(int) int { return 1 + random.IntN(60) })
	padded := func(b *Batches) float64 {
		var places, tokens int64
		for segment := range b.SegmentsPerEpoch() {
			places += int64(b.Steps(segment)) * int64(b.Config().Lanes)
		}
		for i := range s.Len() {
			tokens += int64(s.Length(i))
		}
		return float64(places)/float64(tokens) - 1
	}
	if share := padded(batches(t, s, BatchesConfig{Lanes: 32})); share > 0.05 {
		t.Errorf("training: %.1f%% padding", 100*share)
	}
	e := evaluation(t, s, 32)
	if share := padded(e); share > 0.01 {
		t.Errorf("evaluation: %.1f%% padding", 100*share)
	}
	for segment := range e.SegmentsPerEpoch() - 1 {
		if e.Steps(segment) > e.Steps(segment+1) {
			t.Fatalf("segment %d of an evaluation is longer than the next", segment)
		}
	}
}

func TestBatchesRefuseWhatIsNotThere(t *testing.T) {
	s := lengths(t, 3, func(int) int { return 1 })
	for _, lanes := range []int{0, -1, 1<<20 + 1} {
		if _, err := NewBatches(s, BatchesConfig{Lanes: lanes}); err == nil ||
			!strings.Contains(err.Error(), "--batch") {
			t.Errorf("%d lanes: %v", lanes, err)
		}
		if _, err := NewEvaluation(s, lanes); err == nil {
			t.Errorf("an evaluation with %d lanes", lanes)
		}
	}
	b := batches(t, s, BatchesConfig{Lanes: 2})
	for name, use := range map[string]func(){
		"lane":     func() { b.Example(0, 2) },
		"segment":  func() { b.Example(-1, 0) },
		"lanes":    func() { b.Targets(0, 1, 2) },
		"example":  func() { s.Length(3) },
		"negative": func() { s.Length(-1) },
		"room":     func() { _ = s.Read(0, make([]int32, 2), make([]int32, 1)) },
		"range":    func() { s.Range(1, 3) },
		"nothing":  func() { s.Range(1, 0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			use()
		}()
	}
}
