package linktest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"rondo/allreduce"
)

// Rings makes rings of nodes, and closes them with the test. timeout is their step timeout, and
// half of it their chunk timeout.
func Rings(
	t testing.TB, nodes []Node, generation allreduce.Generation, chunkBytes int,
	timeout time.Duration,
) []*allreduce.Ring {
	t.Helper()
	rings := make([]*allreduce.Ring, len(nodes))
	for rank, node := range nodes {
		ring, err := allreduce.New(allreduce.Config{
			Rank:         allreduce.Rank(rank),
			World:        len(nodes),
			Generation:   generation,
			ChunkBytes:   chunkBytes,
			ChunkTimeout: timeout / 2,
			StepTimeout:  timeout,
		}, node.Links)
		if err != nil {
			t.Fatal(err)
		}
		rings[rank] = ring
	}
	t.Cleanup(func() {
		Each(len(rings), func(rank int) error { return rings[rank].Close() })
	})
	return rings
}

// Each runs f for all ranks at once, and returns each rank's error.
func Each(world int, f func(rank int) error) []error {
	errs := make([]error, world)
	done := make(chan struct{})
	for rank := range world {
		go func() {
			errs[rank] = f(rank)
			done <- struct{}{}
		}()
	}
	for range world {
		<-done
	}
	return errs
}

// CheckSum all-reduces random buffers of n floats. It checks that all ranks have the same bits,
// close to a float64 sum.
func CheckSum(t testing.TB, rings []*allreduce.Ring, rng *rand.Rand, n int) {
	t.Helper()
	given := draw(rng, len(rings), n)
	for rank, err := range Each(len(rings), func(rank int) error {
		return rings[rank].AllReduce(context.Background(), given.bufs[rank])
	}) {
		if err != nil {
			t.Fatalf("%d floats, rank %d: %v", n, rank, err)
		}
	}
	given.checkAll(t)
}

// CheckRounded all-reduces random buffers of n floats that travel as e. It checks that all ranks
// have the same bits, close to a float64 sum. With feedback it sums several times, and checks that
// all sums plus the withheld errors equal the inputs.
func CheckRounded(
	t testing.TB, rings []*allreduce.Ring, rng *rand.Rand, n int, e allreduce.Element,
	feedback bool,
) {
	t.Helper()
	world := len(rings)
	residuals := make([][]float32, world)
	rounds := 1
	if feedback && e != allreduce.Float32 {
		rounds = 3
		for rank := range residuals {
			residuals[rank] = make([]float32, n)
		}
	}
	balance, size := make([]float64, n), make([]float64, n) // input less sum
	for range rounds {
		given := draw(rng, world, n)
		for rank, err := range Each(world, func(rank int) error {
			s := allreduce.Sum{Buf: given.bufs[rank], Element: e, Residual: residuals[rank]}
			p, err := rings[rank].Start(context.Background(), s)
			if err != nil {
				return err
			}
			return p.Wait(context.Background())
		}) {
			if err != nil {
				t.Fatalf("%d floats as %v, rank %d: %v", n, e, rank, err)
			}
		}
		given.agree(t)
		for i := range n {
			balance[i] += given.sum[i] - float64(given.bufs[0][i])
			size[i] += given.size[i]
		}
	}
	for i := range n {
		off := balance[i]
		for _, residual := range residuals {
			if residual != nil {
				off -= float64(residual[i])
			}
		}
		if limit := roundingLimit(world, e, rounds > 1) * size[i]; !(math.Abs(off) <= limit) {
			t.Fatalf("%d floats as %v, feedback %v, float %d: off by %v, want at most %v", n, e,
				feedback, i, off, limit)
		}
	}
}

// roundingLimit returns the largest error of a sum whose magnitudes add up to 1. Each rank rounds
// to e once, which is lost without feedback, and to float32 in up to three additions.
func roundingLimit(world int, e allreduce.Element, feedback bool) float64 {
	limit := 3 * float64(world) * 0x1p-24
	switch {
	case world == 1 || feedback:
		return limit
	case e == allreduce.BFloat16:
		return limit + float64(world)*0x1p-8
	case e == allreduce.Float16:
		return limit + float64(world)*0x1p-11
	}
	return limit
}

// CheckQueued queues sums of random buffers of the lengths, each with a carry, and an all-gather
// after them. It checks the results as [CheckSum] and [CheckGather] do.
func CheckQueued(t testing.TB, rings []*allreduce.Ring, rng *rand.Rand, lengths []int) {
	t.Helper()
	world := len(rings)
	given := make([]*summands, len(lengths))
	for i, n := range lengths {
		given[i] = draw(rng, world, n)
	}
	gathered := make([][]float32, world)
	ends := make([]int, world)
	for rank := range world {
		gathered[rank] = make([]float32, world)
		gathered[rank][rank], ends[rank] = float32(rank+1), rank+1
	}
	for rank, err := range Each(world, func(rank int) error {
		return queueAll(rings[rank], rank, world, given, gathered[rank], ends)
	}) {
		if err != nil {
			t.Fatalf("lengths %v, rank %d: %v", lengths, rank, err)
		}
	}
	for i, g := range given {
		g.checkAll(t)
		for rank := range world {
			if want := float32(rank + 1); gathered[i%world][rank] != want {
				t.Fatalf("gathered %v", gathered[i%world])
			}
		}
	}
}

func queueAll(
	ring *allreduce.Ring, rank, world int, given []*summands, gathered []float32, ends []int,
) error {
	ctx := context.Background()
	pending, in := make([]*allreduce.Pending, len(given)), make([][]float32, len(given))
	for i, g := range given {
		s := allreduce.Sum{Buf: g.bufs[rank]}
		if len(s.Buf) > 1 && world > 1 {
			in[i] = make([]float32, 2*i)
			s.Carry = allreduce.Carry{
				Out: [][]float32{slices.Repeat([]float32{float32(100*i + rank)}, 2*i)},
				In:  [][]float32{in[i]},
			}
		}
		var err error
		if pending[i], err = ring.Start(ctx, s); err != nil {
			return err
		}
	}
	if err := ring.AllGather(ctx, gathered, ends); err != nil {
		return err
	}
	from := (rank + world - 1) % world
	for i := range slices.Backward(pending) { // waits may come in any order
		if err := pending[i].Wait(ctx); err != nil {
			return err
		}
		if want := slices.Repeat([]float32{float32(100*i + from)}, len(in[i])); !slices.Equal(
			in[i], want) {
			return fmt.Errorf("carried in %v, want %v", in[i], want)
		}
	}
	return nil
}

// CheckScatter reduce-scatters random buffers, and compares each rank's range with the float64 sum.
func CheckScatter(t testing.TB, rings []*allreduce.Ring, rng *rand.Rand, ends []int) {
	t.Helper()
	given := draw(rng, len(rings), ends[len(ends)-1])
	for rank, err := range Each(len(rings), func(rank int) error {
		return rings[rank].ReduceScatter(context.Background(), given.bufs[rank], ends)
	}) {
		if err != nil {
			t.Fatalf("ends %v, rank %d: %v", ends, rank, err)
		}
	}
	at := 0
	for rank, end := range ends {
		given.check(t, rank, at, end)
		at = end
	}
}

// summands holds the ranks' inputs to a sum, and the float64 results.
type summands struct {
	bufs      [][]float32
	sum, size []float64 // of the numbers, and of their magnitudes
}

// draw returns n random floats of varied magnitude for each rank.
func draw(rng *rand.Rand, world, n int) *summands {
	s := &summands{make([][]float32, world), make([]float64, n), make([]float64, n)}
	for rank := range s.bufs {
		s.bufs[rank] = make([]float32, n)
		for i := range n {
			x := (rng.Float32() - 0.5) * float32(int(1)<<rng.IntN(12))
			s.bufs[rank][i] = x
			s.sum[i] += float64(x)
			s.size[i] += math.Abs(float64(x))
		}
	}
	return s
}

// checkAll checks that all ranks have the same bits, close to the sum.
func (s *summands) checkAll(t testing.TB) {
	t.Helper()
	s.agree(t)
	for rank := range s.bufs {
		s.check(t, rank, 0, len(s.sum))
	}
}

func (s *summands) agree(t testing.TB) {
	t.Helper()
	for rank, buf := range s.bufs {
		for i, got := range buf {
			if first := s.bufs[0][i]; math.Float32bits(got) != math.Float32bits(first) {
				t.Fatalf("%d floats, float %d: rank 0 has %v, rank %d has %v",
					len(buf), i, first, rank, got)
			}
		}
	}
}

func (s *summands) check(t testing.TB, rank, lo, hi int) {
	t.Helper()
	for i := lo; i < hi; i++ {
		got := s.bufs[rank][i]
		// Each of the N-1 additions errs by at most half a unit in the last place.
		limit := float64(len(s.bufs)) * 0x1p-24 * s.size[i]
		if diff := math.Abs(float64(got) - s.sum[i]); !(diff <= limit) {
			t.Fatalf("%d floats, float %d, rank %d: %v, the sum is %v",
				len(s.sum), i, rank, got, s.sum[i])
		}
	}
}

// CheckGather all-gathers ranges of random bits, and compares every rank's result with the inputs.
func CheckGather(t testing.TB, rings []*allreduce.Ring, rng *rand.Rand, ends []int) {
	t.Helper()
	n := ends[len(ends)-1]
	want := make([]float32, n)
	for i := range want {
		want[i] = math.Float32frombits(rng.Uint32())
	}
	bufs := make([][]float32, len(rings))
	at := 0
	for rank, end := range ends {
		bufs[rank] = make([]float32, n)
		copy(bufs[rank][at:end], want[at:end])
		at = end
	}
	for rank, err := range Each(len(rings), func(rank int) error {
		return rings[rank].AllGather(context.Background(), bufs[rank], ends)
	}) {
		if err != nil {
			t.Fatalf("ends %v, rank %d: %v", ends, rank, err)
		}
	}
	for rank, buf := range bufs {
		if !slices.Equal(allreduce.Bytes(buf), allreduce.Bytes(want)) {
			t.Fatalf("ends %v: rank %d did not get what the ranks gave", ends, rank)
		}
	}
}

const chunkBytes = 64 // small, so that short buffers have many chunks

func testSums(t *testing.T, form Form) {
	for _, world := range []int{2, 3, 4} {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			rings := Rings(t, form(t, world), generation, chunkBytes, time.Minute)
			rng := rand.New(rand.NewPCG(uint64(world), 0))
			for n := range 71 {
				CheckSum(t, rings, rng, n)
			}
			for _, n := range []int{1, 3, 31, 32, 70, 127, 128, 129, 1000} {
				CheckSum(t, rings, rng, n)
				CheckRounded(t, rings, rng, n, allreduce.BFloat16, n%2 == 0)
				CheckRounded(t, rings, rng, n, allreduce.Float16, n%2 == 1)
			}
		})
	}
	t.Run("large", func(t *testing.T) {
		rings := Rings(t, form(t, 2), generation, 0, time.Minute)
		rng := rand.New(rand.NewPCG(20, 0))
		CheckSum(t, rings, rng, 2*(allreduce.MaxChunkBytes/4)+1)
		CheckRounded(t, rings, rng, allreduce.MaxChunkBytes+1, allreduce.BFloat16, true)
	})
}

func testGathers(t *testing.T, form Form) {
	rings := Rings(t, form(t, 3), generation, chunkBytes, time.Minute)
	rng := rand.New(rand.NewPCG(21, 0))
	for _, ends := range [][]int{
		{0, 0, 0}, {1, 2, 3}, {0, 0, 5}, {5, 5, 5}, {0, 70, 70}, {16, 17, 100}, {3, 500, 501},
	} {
		CheckGather(t, rings, rng, ends)
	}
}

func testQueued(t *testing.T, form Form) {
	for _, world := range []int{2, 3, 4} {
		rings := Rings(t, form(t, world), generation, chunkBytes, time.Minute)
		rng := rand.New(rand.NewPCG(23, uint64(world)))
		for range 5 {
			lengths := []int{100, 1, 0, 3, 1000, 17, 2, 64}
			CheckQueued(t, rings, rng, lengths)
			CheckQueuedRounded(t, rings, rng, lengths)
		}
	}
}

func testScatters(t *testing.T, form Form) {
	rings := Rings(t, form(t, 3), generation, chunkBytes, time.Minute)
	rng := rand.New(rand.NewPCG(22, 0))
	for _, ends := range [][]int{
		{0, 0, 0}, {1, 2, 3}, {0, 0, 5}, {5, 5, 5}, {0, 70, 70}, {16, 17, 100}, {3, 500, 501},
	} {
		CheckScatter(t, rings, rng, ends)
	}
}

// failTogether runs all-reduces on all ranks. end takes one rank out of the ring in the middle of
// them. All others must fail within a moment.
func failTogether(t *testing.T, form Form, end func(Node, *allreduce.Ring)) {
	const world, gone = 4, 2
	nodes := form(t, world)
	rings := Rings(t, nodes, generation, 16<<10, time.Minute)
	errs := make(chan error, world)
	steady := make(chan struct{}, world)
	for rank, ring := range rings {
		go func() {
			buf := make([]float32, 1<<17)
			for i := 0; ; i++ {
				if err := ring.AllReduce(context.Background(), buf); err != nil {
					errs <- fmt.Errorf("rank %d: %w", rank, err)
					return
				}
				if i == 2 {
					steady <- struct{}{}
				}
			}
		}()
	}
	for range world {
		<-steady
	}
	end(nodes[gone], rings[gone])
	for range world {
		err := within(t, "collective with a rank gone", func() error { return <-errs })
		t.Log(err)
	}
	for rank, ring := range rings {
		if err := ring.AllReduce(context.Background(), make([]float32, 10)); err == nil {
			t.Errorf("rank %d: a broken ring reduced", rank)
		}
	}
}

func testRankCloses(t *testing.T, form Form) {
	failTogether(t, form, func(_ Node, ring *allreduce.Ring) { ring.Close() })
}

func testRankDies(t *testing.T, form Form) {
	failTogether(t, form, func(node Node, _ *allreduce.Ring) {
		if node.Kill == nil {
			t.Skip("this link cannot lose a rank")
		}
		node.Kill()
	})
}

// testIdleRanksLearn: a rank outside of any collective still learns of a failure.
func testIdleRanksLearn(t *testing.T, form Form) {
	const world = 3
	rings := Rings(t, form(t, world), generation, 0, time.Minute)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := rings[0].AllReduce(ctx, make([]float32, 1)); err == nil {
		t.Error("a cancelled all-reduce succeeded")
	}
	for rank := 1; rank < world; rank++ {
		select {
		case <-rings[rank].Broken():
		case <-time.After(Moment):
			t.Fatalf("rank %d: not broken within %v", rank, Moment)
		}
		err := within(t, "all-reduce", func() error {
			return rings[rank].AllReduce(context.Background(), make([]float32, 1))
		})
		if err == nil {
			t.Errorf("rank %d: a broken ring reduced", rank)
		}
	}
}
