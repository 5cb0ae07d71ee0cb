package compress

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
)

// TestTopOfAllIsDense: top-k of all numbers gives the dense sum, in the order of ranks, and keeps
// nothing.
func TestTopOfAllIsDense(t *testing.T) {
	const n = 70
	tensors := []Tensor{{0, 5, 9}, {46, 1, 20}}
	for world := 1; world <= 8; world++ {
		c := newCompany(t, world, Config{Length: n, Tensors: tensors, TopK: 1}, false)
		rng := rand.New(rand.NewPCG(3, uint64(world)))
		gradients := make([][]float32, world)
		want := make([]float32, n)
		for rank := range gradients {
			gradients[rank] = randomGradient(rng, n, tensors)
			for i, v := range gradients[rank] {
				want[i] += v
			}
		}
		c.sum(gradients)
		c.commit()
		if !slices.Equal(gradients[0], want) {
			t.Errorf("%d ranks: the sum is not the dense one", world)
		}
		if slices.ContainsFunc(c.summers[0].kept.kept, func(v float32) bool { return v != 0 }) {
			t.Errorf("%d ranks: something is kept", world)
		}
	}
}

// TestTopOfWhat: the largest of all numbers travel, or the largest of each tensor.
func TestTopOfWhat(t *testing.T) {
	tensors := []Tensor{{1, 2, 2}, {6, 1, 4}}
	for perTensor, want := range map[bool][]float32{
		false: {0, 9, -8, 0, 0, 0, 0, 0, 0, 0},
		true:  {0, 9, 0, 0, 0, 0, 0, 0.4, 0, 0},
	} {
		c := newCompany(t, 1, Config{Length: 10, Tensors: tensors, TopK: 0.25,
			PerTensor: perTensor}, false)
		gradients := [][]float32{{0, 9, -8, 7, 1, 0, 0.1, 0.4, -0.3, 0.2}}
		c.sum(gradients)
		if !slices.Equal(gradients[0], want) {
			t.Errorf("by tensor %v: %v travels, want %v", perTensor, gradients[0], want)
		}
	}
}

// TestLargest compares the selection with a sort.
func TestLargest(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	draw := map[string]func() float32{
		"normal": func() float32 { return float32(rng.NormFloat64()) },
		"equal":  func() float32 { return float32(rng.IntN(3) - 1) },
		"close":  func() float32 { return 1 + float32(rng.IntN(9))/(1<<23) },
		"bits":   func() float32 { return math.Float32frombits(rng.Uint32()) },
		"tiny":   func() float32 { return math.Float32frombits(rng.Uint32N(2000)) },
	}
	var s selector
	for kind, number := range draw {
		for n := range 200 {
			x := make([]float32, n)
			order := make([]uint32, n)
			for i := range x {
				x[i], order[i] = number(), uint32(i)
			}
			sort.SliceStable(order, func(i, j int) bool {
				return magnitude(x[order[i]]) > magnitude(x[order[j]])
			})
			for _, k := range []int{0, 1, n / 10, n / 2, n - 1, n} {
				if k < 0 || k > n {
					continue
				}
				got, want := make([]uint32, k), slices.Clone(order[:k])
				s.largest(got, x)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Fatalf("%s: the %d largest of %v are %v, want %v", kind, k, x, got, want)
				}
			}
		}
	}
}

// TestPowerSGDOfFullRank: full-rank factors are exact. If the sum has low rank, factors of that
// rank are exact, too.
func TestPowerSGDOfFullRank(t *testing.T) {
	const world = 3
	for _, shape := range []Tensor{{0, 6, 6}, {0, 5, 9}, {0, 9, 5}} {
		least := min(shape.Rows, shape.Columns)
		c := newCompany(t, world, Config{Length: shape.size(), Tensors: []Tensor{shape},
			PowerSGD: 1, Seed: 5}, false)
		for _, s := range c.summers {
			way := newPowerSGD(Config{PowerSGD: 0})
			way.matrices = []matrix{{Tensor: shape, rank: least}}
			way.first = make([]float32, least*shape.Rows)
			for _, q := range []*[]float32{&way.second, &way.local, &way.warm, &way.fresh} {
				*q = make([]float32, least*shape.Columns)
			}
			s.method = way
			s.Resume(0, 1, false)
		}
		rng := rand.New(rand.NewPCG(6, 6))
		for range 4 {
			gradients := make([][]float32, world)
			for rank := range gradients {
				gradients[rank] = randomGradient(rng, shape.size(), []Tensor{shape})
			}
			want := total(gradients)
			c.sum(gradients)
			c.commit()
			near(t, fmt.Sprint(shape), gradients[0], want, 2e-5)
		}
	}
}

func TestPowerSGDOfLowRank(t *testing.T) {
	const world, rows, columns, rank = 2, 30, 40, 4
	shape := Tensor{0, rows, columns}
	c := newCompany(t, world, Config{Length: shape.size(), Tensors: []Tensor{shape},
		PowerSGD: rank}, false)
	rng := rand.New(rand.NewPCG(6, 7))
	for range 4 {
		gradients := make([][]float32, world)
		for i := range gradients { // of rank two each, so that the sum has rank four
			gradients[i] = make([]float32, shape.size())
			for range rank / world {
				u := randomGradient(rng, rows, []Tensor{{0, 1, rows}})
				v := randomGradient(rng, columns, []Tensor{{0, 1, columns}})
				for row, a := range u {
					addScaled(gradients[i][row*columns:][:columns], v, a)
				}
			}
		}
		want := total(gradients)
		c.sum(gradients)
		c.commit()
		norm := 0.0
		for _, v := range want {
			norm += v * v
		}
		near(t, "low rank", gradients[0], want, 1e-3*math.Sqrt(norm))
	}
}

// TestOrthogonalise: vectors that depend on earlier ones become zero; the others become
// orthonormal.
func TestOrthogonalise(t *testing.T) {
	const n, r = 50, 6
	rng := rand.New(rand.NewPCG(1, 2))
	x := randomGradient(rng, n*r, []Tensor{{0, r, n}})
	copy(x[2*n:3*n], x[:n])
	scale(x[2*n:3*n], 3)
	clear(x[4*n : 5*n])
	scale(x[5*n:], 1e-20)
	orthogonalise(x, r)
	for a := range r {
		for b := range r {
			want := 0.0
			if a == b && a != 2 && a != 4 {
				want = 1
			}
			if got := inner(x[a*n:][:n], x[b*n:][:n]); math.Abs(got-want) > 1e-6 {
				t.Errorf("columns %d and %d: %v, want %v", a, b, got, want)
			}
		}
	}
}

// TestLookupIsDense: only touched tokens of a lookup travel, and the sum is the dense one: bit for
// bit between two ranks, and between more ranks for whole numbers, for which no order of addition
// rounds.
func TestLookupIsDense(t *testing.T) {
	const n = 200
	tensors := []Tensor{{0, 3, 7}, {21, 12, 11}, {160, 1, 40}}
	for _, byColumn := range []bool{false, true} {
		for world := 2; world <= 5; world++ {
			l := &Lookup{Tensor: tensors[1], ByColumn: byColumn, Always: true}
			sparse := newCompany(t, world, Config{Length: n, Tensors: tensors, Lookup: l}, false)
			dense := newCompany(t, world, Config{Length: n, Tensors: tensors}, false)
			rng := rand.New(rand.NewPCG(uint64(world), 1))
			for range 5 {
				gradients := make([][]float32, world)
				for rank := range gradients {
					gradients[rank] = randomGradient(rng, n, tensors)
					for i, v := range gradients[rank] {
						if world > 2 {
							gradients[rank][i] = float32(math.Round(float64(v) * 100))
						}
					}
					few := &Lookup{Tensor: l.Tensor, ByColumn: byColumn}
					ids := touched(rng, few, gradients[rank])
					sparse.summers[rank].Touch(ids)
				}
				want := cloneAll(gradients)
				sparse.sum(gradients)
				dense.sum(want)
				if !slices.Equal(gradients[0], want[0]) {
					t.Fatalf("%d ranks, by column %t: not the dense sum", world, byColumn)
				}
			}
		}
	}
}

// TestLookupRests: the ranks exchange nothing for some steps after an exchange that saved nothing,
// and never for small tensors.
func TestLookupRests(t *testing.T) {
	const V, W = 64, 512
	l := newTouchedTokens(&Lookup{Tensor: Tensor{0, V, W}})
	l.join(2)
	if !l.exchanges(2) {
		t.Fatal("the ranks exchange nothing")
	}
	l.pause = pauseSteps
	for step := range pauseSteps {
		if l.exchanges(2) {
			t.Fatalf("exchange in step %d of the pause", step)
		}
	}
	if !l.exchanges(2) {
		t.Error("the pause does not end")
	}
	small := newTouchedTokens(&Lookup{Tensor: Tensor{0, V, 4}})
	small.join(2)
	if small.exchanges(2) {
		t.Error("asked of a small tensor")
	}
}

// TestProducts compares the vector loops with plain ones at every length.
func TestProducts(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for n := range 100 {
		tensor := []Tensor{{0, 1, max(1, n)}}
		x := randomGradient(rng, max(1, n), tensor)[:n]
		y := randomGradient(rng, max(1, n)+1, tensor)[:n+1]
		want, sum := slices.Clone(y), 0.0
		for i, v := range x {
			want[i] += float32(0.3 * v)
			sum += float64(v) * float64(y[i])
		}
		if got := dot(x, y[:n]); math.Abs(float64(got)-sum) > 1e-4 {
			t.Errorf("%d floats: dot %v, want %v", n, got, sum)
		}
		addScaled(y[:n], x, 0.3)
		if !slices.Equal(y, want) {
			t.Errorf("%d floats: sum %v, want %v", n, y, want)
		}
	}
}

// BenchmarkSum measures a rank's computing for a sum, on a ring that sends nothing.
func BenchmarkSum(b *testing.B) {
	tensors := []Tensor{{0, 1024, 1024}, {1 << 20, 1024, 1024}}
	const n = 2 << 20
	for way, config := range map[string]Config{"top 0.01": {TopK: 0.01}, "rank 4": {PowerSGD: 4},
		"rank 1": {PowerSGD: 1}} {
		b.Run(way, func(b *testing.B) {
			config.Length, config.Tensors = n, tensors
			c := newCompany(b, 1, config, false)
			gradient := randomGradient(rand.New(rand.NewPCG(1, 1)), n, tensors)
			host := slices.Clone(gradient)
			b.SetBytes(4 * n)
			for b.Loop() {
				copy(host, gradient)
				c.sum([][]float32{host})
				c.commit()
			}
		})
	}
}
