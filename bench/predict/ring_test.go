package predict

import (
	"math"
	"math/rand/v2"
	"testing"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Abs(b) }

// With a chunk a segment, the time is the textbook's: 2(N-1) messages one after another.
func TestClassicFormula(t *testing.T) {
	link := Link{Alpha: 50e-6, Beta: 1e-9, Message: 10e-6}
	const bytes, gamma = 1e5, 1e-10 // less than a chunk a segment, of two ranks too
	for _, n := range []int{1, 2, 3, 8, 100, 16384} {
		N := float64(n)
		want := 2*(N-1)*(link.Alpha+link.Message) + 2*(N-1)/N*bytes*link.Beta +
			(N-1)/N*bytes*gamma
		if got := AllReduce(n, bytes, 1<<20, link, gamma); math.Abs(got-want) > 1e-9*(want+1e-9) {
			t.Errorf("%d ranks: %v, want %v", n, got, want)
		}
	}
}

// With many chunks a segment the link never waits: latency and reduction are paid once.
func TestPipeline(t *testing.T) {
	link := Link{Alpha: 50e-6, Beta: 1e-9}
	const bytes, chunk, gamma = 64e6, 1e6, 1e-10
	for _, n := range []float64{2, 4, 8} {
		want := 2*(n-1)/n*bytes*link.Beta + link.Alpha
		if got := AllReduce(int(n), bytes, chunk, link, gamma); !near(got, want) {
			t.Errorf("%v ranks: %v, want %v", n, got, want)
		}
	}
}

// Of ranks that behave alike one place is enough, and of hosts that do a host's.
func TestPlaces(t *testing.T) {
	local, across := hop{Link: Link{Alpha: 1, Beta: 0.001}}, hop{Link: Link{Alpha: 7, Beta: 0.01}}
	for _, pattern := range [][]hop{{across}, {local, across}, {local, local, local, across}} {
		const world = 8
		var links []hop
		for len(links) < world {
			links = append(links, pattern...)
		}
		few, all := newRing(world, pattern, 0.001, 0), newRing(world, links, 0.001, 0)
		fewDone, allDone := make([]float64, len(pattern)), make([]float64, world)
		for range 3 {
			for _, bytes := range []float64{80, 20_000} {
				few.run(allReduce, cut(bytes, world, 1000), fewDone, fewDone)
				all.run(allReduce, cut(bytes, world, 1000), allDone, allDone)
			}
		}
		for i, got := range allDone {
			if want := fewDone[i%len(pattern)]; !near(got, want) {
				t.Errorf("%d places: rank %d is done at %v, want %v", len(pattern), i, got, want)
			}
		}
	}
}

// Collectives queue: the second of two does not wait for the first to be done, and neither is
// faster for it.
func TestQueue(t *testing.T) {
	link := []hop{{Link: Link{Alpha: 1, Beta: 0.001}}}
	one := AllReduce(4, 4000, 1000, link[0].Link, 0)
	r := newRing(4, link, 0, 0)
	first, second := []float64{0}, []float64{0}
	r.run(allReduce, cut(4000, 4, 1000), first, first)
	r.run(allReduce, cut(4000, 4, 1000), second, second)
	if !near(first[0], one) || !(second[0] > one) || !(second[0] <= 2*one) {
		t.Errorf("one takes %v; of two the first is done at %v, the second at %v", one, first[0],
			second[0])
	}
}

func TestJitter(t *testing.T) {
	j := newJitter(3)
	const draws = 1 << 18
	sum, above := 0.0, 0
	for i := range uint64(draws) {
		x := j.draw(9, i%512, i/512)
		sum += x
		if x > 3*math.Ln2 {
			above++
		}
	}
	if mean := sum / draws; math.Abs(mean-3) > 0.05 {
		t.Errorf("mean %v, want 3", mean)
	}
	if half := float64(above) / draws; math.Abs(half-0.5) > 0.01 {
		t.Errorf("%v of the draws are above the median", half)
	}
	if newJitter(0) != nil {
		t.Error("jitter of mean 0")
	}
}

func TestComputeDraws(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 1))
	for _, c := range []Compute{
		{Seconds: 2},
		{Seconds: 2, Sigma: 0.5},
		{Samples: []float64{1, 2, 3}},
		{Seconds: 1, Stragglers: 0.25, StragglerFactor: 5},
	} {
		const draws = 100_000
		sum := 0.0
		for range draws / 10 {
			sum += c.draw(source, 10)
		}
		if mean := sum / draws; math.Abs(mean-2) > 0.02 {
			t.Errorf("%+v: mean %v, want 2", c, mean)
		}
	}
}

// Daly's formula is what a job does whose workers fail at random.
func TestProductive(t *testing.T) {
	f := Failures{MTBF: 1000, Detect: 2, Regroup: 3}
	const workers, step, steps = 100, 4.0, 200_000
	source := rand.New(rand.NewPCG(3, 4))
	now, fails := 0.0, source.ExpFloat64()*f.MTBF/workers
	attempt := func(seconds float64) bool { // that nobody fails in
		if now+seconds <= fails {
			now += seconds
			return true
		}
		now, fails = fails, fails+source.ExpFloat64()*f.MTBF/workers
		return false
	}
	for range steps {
		for !attempt(step) {
			for !attempt(f.Detect + f.Regroup) {
			}
		}
	}
	got, want := f.productive(step, workers), steps*step/now
	if math.Abs(got/want-1) > 0.01 {
		t.Errorf("productive %v, by draws %v", got, want)
	}
	if got := (Failures{}).productive(step, workers); got != 1 {
		t.Errorf("without failures %v", got)
	}
	if got := f.productive(1e6, MaxWorkers); got != 0 {
		t.Errorf("of a step that never ends without a failure %v", got)
	}
}

// A ring cuts its segments as package allreduce does: into halves, of 64 KiB at least and of a
// message at most.
func TestCut(t *testing.T) {
	for _, test := range []struct {
		bytes, want float64 // of the longest chunk
		world       int
		count       int // of a segment
	}{
		{100e3, 50e3, 2, 1}, {1 << 20, 256 << 10, 2, 2}, {16 << 20, 1 << 20, 2, 8},
		{1 << 20, 64 << 10, 8, 2}, {1 << 20, 64 << 10, 16, 1},
	} {
		chunks := cut(test.bytes, test.world, 1<<20)
		sum := 0.0
		for _, bytes := range chunks {
			sum += bytes
		}
		if chunks[0] != test.want || len(chunks) != test.count ||
			!near(sum, test.bytes/float64(test.world)) {
			t.Errorf("%v bytes, %d ranks: %v", test.bytes, test.world, chunks)
		}
	}
}
