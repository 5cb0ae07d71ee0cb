package compress

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rondo/allreduce"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testRing is a rank's ring within one process, as a Summer's Ring.
type testRing struct {
	*allreduce.Ring
	element allreduce.Element // of sums by Start
}

func (r testRing) Start(
	ctx context.Context, buf, residual []float32, ended *time.Time,
) (Pending, error) {
	return r.Ring.Start(ctx, allreduce.Sum{Buf: buf, Element: r.element, Residual: residual,
		Ended: ended})
}

func newRings(t testing.TB, world int) []testRing {
	t.Helper()
	links := make([]allreduce.Links, world)
	for rank := range world {
		if next := (rank + 1) % world; world > 1 {
			links[rank].Successor, links[next].Predecessor = allreduce.Pipe(
				allreduce.Peer{Rank: allreduce.Rank(rank)},
				allreduce.Peer{Rank: allreduce.Rank(next)})
		}
	}
	rings := make([]testRing, world)
	for rank := range rings {
		ring, err := allreduce.New(allreduce.Config{Rank: allreduce.Rank(rank), World: world,
			Generation: 1, ChunkBytes: 64, ChunkTimeout: time.Minute, StepTimeout: time.Hour},
			links[rank])
		if err != nil {
			t.Fatal(err)
		}
		rings[rank].Ring = ring
	}
	t.Cleanup(func() { closeAll(rings) })
	return rings
}

// closeAll closes the rings; it may be called twice.
func closeAll(rings []testRing) {
	var closing sync.WaitGroup
	for _, ring := range rings {
		closing.Go(func() { _ = ring.Close() })
	}
	closing.Wait()
}

// company holds the Summers of the ranks of a ring.
type company struct {
	t       testing.TB
	rings   []testRing
	summers []*Summer
	step    int64
	rate    float64
}

// newCompany returns Summers of one config for so many ranks. rounds: the ring sends 16 bits.
func newCompany(t testing.TB, world int, config Config, rounds bool) *company {
	t.Helper()
	c := &company{t: t, rings: newRings(t, world), rate: 1}
	for rank, ring := range c.rings {
		s, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		if rounds {
			ring.element = allreduce.BFloat16
		}
		s.Join(ring, Place{Rank: rank, World: world, Generation: 1})
		s.Resume(0, 1, false)
		c.summers = append(c.summers, s)
	}
	return c
}

// sum sums the ranks' gradients in one step. The caller commits it.
func (c *company) sum(gradients [][]float32) {
	c.t.Helper()
	c.step++
	errs := make([]error, len(c.summers))
	var ranks sync.WaitGroup
	for rank, s := range c.summers {
		ranks.Go(func() { errs[rank] = s.Sum(c.t.Context(), c.step, c.rate, gradients[rank]) })
	}
	ranks.Wait()
	for rank, err := range errs {
		if err != nil {
			c.t.Fatalf("rank %d: %v", rank, err)
		}
	}
}

// end closes the ring. Tests that use many rings call it.
func (c *company) end() { closeAll(c.rings) }

func (c *company) commit() {
	for _, s := range c.summers {
		s.Commit(false)
	}
}

// randomTensors places tensors of all shapes in n floats, with gaps.
func randomTensors(rng *rand.Rand, n int) []Tensor {
	var tensors []Tensor
	for at := rng.IntN(3); at < n; at += rng.IntN(3) {
		rows := 1 + rng.IntN(8)
		columns := 1 + rng.IntN(8)
		if at+rows*columns > n {
			break
		}
		tensors = append(tensors, Tensor{at, rows, columns})
		at += rows * columns
	}
	return tensors
}

// randomGradient returns random numbers in the tensors, and zeros between them.
func randomGradient(rng *rand.Rand, n int, tensors []Tensor) []float32 {
	x := make([]float32, n)
	for _, t := range tensors {
		for i := range t.of(x) {
			t.of(x)[i] = float32(rng.NormFloat64())
		}
	}
	return x
}

// alike fails the test unless all ranks have the same bits.
func alike(t testing.TB, what string, gradients [][]float32) {
	t.Helper()
	for rank, g := range gradients {
		for i := range g {
			if math.Float32bits(g[i]) != math.Float32bits(gradients[0][i]) {
				t.Fatalf("%s: rank %d of %d has %v at %d, rank 0 has %v", what, rank,
					len(gradients), g[i], i, gradients[0][i])
			}
		}
	}
}

func ways(n int, tensors []Tensor) map[string]Config {
	all := map[string]Config{"dense": {}, "dense, fed back": {Feedback: true},
		"top 1": {TopK: 1}, "top 0.1": {TopK: 0.1},
		"top 0.1 of each": {TopK: 0.1, PerTensor: true}, "PowerSGD": {PowerSGD: 1},
		"rank 2": {PowerSGD: 2}}
	if len(tensors) > 0 {
		rows := Lookup{Tensor: tensors[0], Always: true}
		columns := Lookup{Tensor: tensors[0], Always: true, ByColumn: true}
		all["rows"] = Config{Lookup: &rows}
		all["rows, fed back"] = Config{Lookup: &rows, Feedback: true}
		all["columns, fed back"] = Config{Lookup: &columns, Feedback: true}
	}
	for name, c := range all {
		c.Length, c.Tensors, c.Seed = n, tensors, 3
		all[name] = c
	}
	return all
}

// touched returns ids that a rank touches, and zeroes the other tokens in its gradient. Without a
// lookup it does nothing.
func touched(rng *rand.Rand, l *Lookup, gradient []float32) (ids []int32) {
	if l == nil {
		return nil
	}
	keep := make([]bool, l.Tokens())
	for range rng.IntN(l.Tokens() + 1) {
		id := rng.IntN(l.Tokens())
		ids, keep[id] = append(ids, int32(id)), true
	}
	for i := range l.of(gradient) {
		id := i / l.Columns
		if l.ByColumn {
			id = i % l.Columns
		}
		if !keep[id] {
			l.of(gradient)[i] = 0
		}
	}
	return ids
}

// total returns the plain float64 sum over the ranks, of gradients or of kept numbers.
func total(parts [][]float32) []float64 {
	sum := make([]float64, len(parts[0]))
	for _, p := range parts {
		for i, v := range p {
			sum[i] += float64(v)
		}
	}
	return sum
}

func near(t testing.TB, what string, got []float32, want []float64, tolerance float64) {
	t.Helper()
	for i := range got {
		if diff := math.Abs(float64(got[i]) - want[i]); !(diff <= tolerance) {
			t.Fatalf("%s: [%d] is %v, want %v", what, i, got[i], want[i])
		}
	}
}

func name(world, n int, way string) string {
	return fmt.Sprintf("%d ranks, %d floats, %s", world, n, way)
}
