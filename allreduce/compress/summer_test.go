package compress

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestRanksAlike: for each method, length and number of ranks, all ranks have the same bits in each
// step. Nothing is lost: all sums plus the numbers kept at the end equal all gradients.
func TestRanksAlike(t *testing.T) {
	const steps = 3
	for world := 1; world <= 8; world++ {
		for n := 0; n <= 70; n++ {
			rng := rand.New(rand.NewPCG(uint64(world), uint64(n)))
			tensors := randomTensors(rng, n)
			for way, config := range ways(n, tensors) {
				what := name(world, n, way)
				c := newCompany(t, world, config, config.Feedback)
				had, gave := make([]float64, n), make([]float64, n)
				for range steps {
					gradients := make([][]float32, world)
					for rank := range gradients {
						gradients[rank] = randomGradient(rng, n, tensors)
						c.summers[rank].Touch(touched(rng, config.Lookup, gradients[rank]))
						addTo(had, gradients[rank])
					}
					c.sum(gradients)
					c.commit()
					alike(t, what, gradients)
					addTo(gave, gradients[0])
				}
				for _, s := range c.summers {
					if s.kept.kept != nil {
						addTo(gave, s.kept.kept)
					}
				}
				for i := range had {
					if math.Abs(had[i]-gave[i]) > 2e-5 {
						t.Fatalf("%s: at %d the gradients add up to %v, what was summed and kept "+
							"to %v", what, i, had[i], gave[i])
					}
				}
				c.end()
			}
		}
	}
}

func addTo(sum []float64, x []float32) {
	for i, v := range x {
		sum[i] += float64(v)
	}
}

// TestStepDoneAgain: a step without commit changes nothing; a step that another rank has completed
// counts when the next ring resumes after it; a skipped step changes nothing.
func TestStepDoneAgain(t *testing.T) {
	const n, world = 64, 2
	tensors := []Tensor{{0, 8, 7}, {56, 1, 8}}
	all := ways(n, tensors)
	all["top of momenta"] = Config{Length: n, Tensors: tensors, TopK: 0.1,
		Momentum: Momentum{Decay: 0.9, Gain: 1}}
	for way, config := range all {
		if config.Lookup != nil {
			continue // only Feedback keeps anything
		}
		rng := rand.New(rand.NewPCG(4, 2))
		draw := func() [][]float32 {
			return [][]float32{randomGradient(rng, n, tensors), randomGradient(rng, n, tensors)}
		}
		c := newCompany(t, world, config, config.Feedback)
		c.sum(draw())
		c.commit()
		kept := slices.Clone(c.summers[0].kept.kept)

		// Step 2 runs and is lost with its ring: the next ring resumes after step 1.
		gradients := draw()
		again := cloneAll(gradients)
		c.regroup(1, 1, false)
		c.sum(gradients)
		next := slices.Clone(c.summers[0].kept.next)
		c.regroup(1, 1, false)
		if !slices.Equal(c.summers[0].kept.kept, kept) {
			t.Fatalf("%s: a lost step has changed the kept numbers", way)
		}
		c.sum(again)
		if !slices.Equal(again[0], gradients[0]) || !slices.Equal(c.summers[0].kept.next, next) {
			t.Fatalf("%s: a repeated step has other numbers", way)
		}
		// Another rank has completed step 2.
		c.regroup(2, 1, false)
		if !slices.Equal(c.summers[0].kept.kept, next) {
			t.Fatalf("%s: a step that another rank has completed does not count", way)
		}
		// Step 3 is skipped: this rank commits it so, or learns it from the next ring.
		poison := draw()
		poison[1][3] = float32(math.NaN())
		c.sum(poison)
		for _, s := range c.summers {
			s.Commit(true)
		}
		c.regroup(3, 1, true)
		c.sum(draw())
		c.regroup(4, 1, true)
		if !slices.Equal(c.summers[0].kept.kept, next) {
			t.Fatalf("%s: a skipped step has changed the kept numbers", way)
		}
		// The next ring resumes from another ring's state.
		c.regroup(4, 7, false)
		for _, x := range [][]float32{c.summers[0].kept.kept, c.summers[0].kept.velocity} {
			if slices.ContainsFunc(x, func(v float32) bool { return v != 0 }) {
				t.Fatalf("%s: numbers kept with another state were not dropped", way)
			}
		}
	}
}

// regroup makes the ranks join a new ring that resumes after a step.
func (c *company) regroup(step, ring int64, skipped bool) {
	c.step = step
	for _, s := range c.summers {
		s.Join(s.ring.ring, s.place)
		s.Resume(step, ring, skipped)
	}
}

func cloneAll(x [][]float32) [][]float32 {
	var all [][]float32
	for _, v := range x {
		all = append(all, slices.Clone(v))
	}
	return all
}

// TestNotFinite: NaN or infinity on one rank makes some number not finite on all ranks, so that
// they skip the step.
func TestNotFinite(t *testing.T) {
	const n = 64
	tensors := []Tensor{{0, 8, 7}, {56, 1, 8}}
	for way, config := range ways(n, tensors) {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			for _, at := range []int{2, 58} {
				c := newCompany(t, 3, config, config.Feedback)
				gradients := make([][]float32, 3)
				rng := rand.New(rand.NewPCG(1, 1))
				for rank := range gradients {
					gradients[rank] = randomGradient(rng, n, tensors)
					for id := int32(0); config.Lookup != nil && id < 7; id++ {
						c.summers[rank].Touch([]int32{id})
					}
				}
				gradients[1][at] = float32(bad)
				c.sum(gradients)
				for rank, g := range gradients {
					if !slices.ContainsFunc(g, func(v float32) bool { return v-v != 0 }) {
						t.Errorf("%s: %v at %d of rank 1 is lost on rank %d", way, bad, at, rank)
					}
				}
			}
		}
	}
}

// TestQuadratic minimises the sum over the ranks of (x - a)^2, with an a per rank, by gradient
// descent with each method. x comes to the mean of the a.
func TestQuadratic(t *testing.T) {
	const n, world, rate, steps = 12 * 14, 4, 0.005, 3000
	tensors := []Tensor{{0, 12, 14}}
	for way, config := range ways(n, tensors) {
		if config.Lookup != nil {
			continue
		}
		rng := rand.New(rand.NewPCG(9, 9))
		goals := make([][]float32, world)
		for rank := range goals {
			goals[rank] = randomGradient(rng, n, tensors)
		}
		c := newCompany(t, world, config, config.Feedback)
		x := make([]float32, n)
		gradients := cloneAll(goals)
		for range steps {
			for rank, g := range gradients {
				for i := range g {
					g[i] = x[i] - goals[rank][i]
				}
			}
			c.sum(gradients)
			c.commit()
			for i := range x {
				x[i] -= rate / world * gradients[0][i]
			}
		}
		want := total(goals)
		for i := range want {
			want[i] /= world
		}
		near(t, way, x, want, 0.02)
	}
}

// TestRates: the rate changes from step to step. The changes made, plus the numbers kept at the
// last rate, equal all gradients at their own rates. This holds with a skipped step, too.
func TestRates(t *testing.T) {
	const n, world = 64, 2
	tensors := []Tensor{{0, 8, 7}, {56, 1, 8}}
	for way, config := range ways(n, tensors) {
		if config.TopK == 0 && config.PowerSGD == 0 {
			continue
		}
		c := newCompany(t, world, config, false)
		rng := rand.New(rand.NewPCG(6, 2))
		had, gave := make([]float64, n), make([]float64, n)
		rates := []float64{0.1, 1, 0.9, 0.5, 0.4, 0.04, 0.02}
		for i, rate := range rates {
			c.rate = rate
			gradients := [][]float32{randomGradient(rng, n, tensors),
				randomGradient(rng, n, tensors)}
			before := total(gradients)
			c.sum(gradients)
			for _, s := range c.summers {
				s.Commit(i == 3)
			}
			for j := range had {
				if i != 3 { // the skipped step
					had[j] += rate * before[j]
					gave[j] += rate * float64(gradients[0][j])
				}
			}
		}
		for _, s := range c.summers {
			for j, v := range s.kept.kept {
				gave[j] += rates[len(rates)-1] * float64(v)
			}
		}
		for j := range had {
			if math.Abs(had[j]-gave[j]) > 1e-5 {
				t.Fatalf("%s: at %d the changes add up to %v, those made and kept to %v", way, j,
					had[j], gave[j])
			}
		}
	}
}

// TestAfter: up to step After all numbers travel, and none are kept.
func TestAfter(t *testing.T) {
	const n, after = 64, 2
	tensors := []Tensor{{0, 8, 7}, {56, 1, 8}}
	for _, config := range []Config{{TopK: 0.1}, {PowerSGD: 1}} {
		config.Length, config.Tensors, config.After = n, tensors, after
		c := newCompany(t, 2, config, false)
		rng := rand.New(rand.NewPCG(5, 2))
		for step := 1; step <= after+1; step++ {
			gradients := [][]float32{randomGradient(rng, n, tensors),
				randomGradient(rng, n, tensors)}
			want := total(gradients)
			c.sum(gradients)
			c.commit()
			whole := true
			for i, v := range gradients[0] {
				whole = whole && math.Abs(float64(v)-want[i]) < 1e-5
			}
			if whole != (step <= after) {
				t.Errorf("%+v: step %d is whole: %t", config, step, whole)
			}
		}
	}
}

func TestConfig(t *testing.T) {
	for want, c := range map[string]Config{
		"share":        {TopK: 1.5},
		"rank -1":      {PowerSGD: -1},
		"the first":    {After: 1},
		"both":         {PowerSGD: 1, TopK: 0.1},
		"only a dense": {TopK: 0.1, Lookup: &Lookup{}},
		"only top-k":   {PowerSGD: 1, Momentum: Momentum{Gain: 1}},
		"a momentum":   {TopK: 0.1, Momentum: Momentum{Decay: 1, Gain: 1}},
		"-1 floats":    {Length: -1},
		"tensor of 2":  {Length: 10, Tensors: []Tensor{{0, 1, 9}, {8, 2, 1}}},
		"lookup of 3":  {Length: 10, Lookup: &Lookup{Tensor: Tensor{5, 3, 3}}},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want an error with %q", err, want)
		}
	}
}

// slowRing takes a minute for each sum. Its clock advances a second with each reading.
type slowRing struct {
	Ring
	now time.Time
}

func (r *slowRing) look() time.Time {
	r.now = r.now.Add(time.Second)
	return r.now
}

func (r *slowRing) AllReduce(context.Context, []float32) error {
	r.now = r.now.Add(time.Minute)
	return nil
}

func (r *slowRing) AllGather(ctx context.Context, buf []float32, _ []int) error {
	return r.AllReduce(ctx, buf)
}

func (r *slowRing) Start(context.Context, []float32, []float32, *time.Time) (Pending, error) {
	return r, nil
}

func (r *slowRing) Wait(ctx context.Context) error { return r.AllReduce(ctx, nil) }

// TestBusy: Busy counts the time of a sum without its waits for the ring.
func TestBusy(t *testing.T) {
	for way, config := range ways(64, []Tensor{{0, 8, 7}}) {
		ring := &slowRing{}
		config.Now = ring.look
		s, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		s.Join(ring, Place{World: 1})
		s.Resume(0, 1, false)
		if err := s.Sum(t.Context(), 1, 1, make([]float32, 64)); err != nil {
			t.Fatal(err)
		}
		if got := s.Busy(); got < time.Second || got >= 10*time.Second {
			t.Errorf("%s: busy for %v", way, got)
		}
	}
}

// TestProbe: Probe sums like a dense gradient, and keeps nothing.
func TestProbe(t *testing.T) {
	c := newCompany(t, 2, Config{Length: 8, Tensors: []Tensor{{0, 1, 8}}, Feedback: true}, true)
	bufs := [][]float32{{1.001, 2}, {1, 3}}
	var ranks sync.WaitGroup
	for rank, s := range c.summers {
		ranks.Go(func() {
			if err := s.Probe(t.Context(), bufs[rank]); err != nil {
				t.Error(err)
			}
		})
	}
	ranks.Wait()
	if want := []float32{2, 5}; !slices.Equal(bufs[0], want) || !slices.Equal(bufs[1], want) {
		t.Errorf("the sum is %v and %v, want %v, in 16 bits", bufs[0], bufs[1], want)
	}
	if kept := c.summers[0].kept.kept; slices.ContainsFunc(kept, func(v float32) bool {
		return v != 0
	}) {
		t.Errorf("%v is kept of what was only measured", kept)
	}
}
