package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"rondo/compute"
)

// everything runs every kernel of a device on problems that the random source decides, and returns
// what they compute.
func everything(d *Device, random *rand.Rand) []named {
	var all []named
	add := func(of string, results ...named) {
		for _, r := range results {
			all = append(all, named{of + " " + r.name, r.values})
		}
	}
	for _, c := range append(layerCases(random), longCases(random)...) {
		add(c.name, c.run(d)...)
	}
	for _, c := range outputCases(random) {
		losses, gradients := c.run(d)
		add(c.name, gradients...)
		add(c.name, named{"loss", []float32{float32(losses[0]), float32(losses[1])}})
	}
	for range 8 {
		m, n, k := 1+random.IntN(200), 1+random.IntN(200), 1+random.IntN(200)
		a, b, c := randoms(d, m*k, random), randoms(d, k*n, random), randoms(d, m*n, random)
		transA, transB := random.IntN(2) == 0, random.IntN(2) == 0
		d.Gemm(transA, transB, m, n, k, 0.7, a, b, 0.3, c)
		add(fmt.Sprintf("Gemm %t %t %dx%dx%d", transA, transB, m, n, k), named{"c", c})
	}
	return append(all, elementwise(d, random)...)
}

// elementwise runs what is not a product, on vectors long enough for several threads. It gives the
// same bits on every device.
func elementwise(d *Device, random *rand.Rand) []named {
	var all []named
	for _, n := range []int{1, 33, 1000, 1 << 17, 1<<17 + 77} {
		for o := compute.SGD; o <= compute.Adagrad; o++ {
			p, g, s1, s2 := randoms(d, n, random), randoms(d, n, random), d.Alloc(n), d.Alloc(n)
			for step := range int64(3) {
				d.Update(compute.Update{Optimizer: o, Step: step + 1, LR: 0.1, Momentum: 0.9,
					Beta1: 0.9, Beta2: 0.999, Rho: 0.99, Epsilon: 1e-8, WeightDecay: 0.01},
					p, g, s1, s2)
			}
			of := fmt.Sprintf("optimizer %d of %d ", o, n)
			all = append(all, named{of + "parameters", p}, named{of + "slot 1", s1},
				named{of + "slot 2", s2})
		}
		x, y := randoms(d, n, random), randoms(d, n, random)
		d.Add(y, x)
		d.Clamp(y, 1.5)
		d.Scale(y, float32(d.SumSquares(x)))
		keys := []uint64{random.Uint64()}
		dropped := junk(d, n)
		d.Dropout(dropped, x, 1, 0.3, keys)
		all = append(all, named{fmt.Sprintf("sum, limit, scale of %d", n), y},
			named{fmt.Sprintf("dropout of %d", n), dropped})
	}
	return all
}

// TestThreadsAgree wants the same bits of every kernel whatever the number of threads.
func TestThreadsAgree(t *testing.T) {
	seed := newRandom(t).Uint64()
	for _, p := range precisions {
		for _, isa := range isas(p) {
			t.Run(fmt.Sprintf("%s/%s", p, isa), func(t *testing.T) {
				compute := func(threads int) []named {
					d := newDevice(t, isa, Config{Threads: threads, Precision: p})
					return everything(d, rand.New(rand.NewPCG(seed, 0)))
				}
				alone := compute(1)
				for _, threads := range []int{2, 3} {
					for i, got := range compute(threads) {
						identical(t, fmt.Sprintf("%s of %d threads", got.name, threads),
							got.values, alone[i].values)
					}
				}
			})
		}
	}
}

// TestElementwiseAgrees wants the same bits of what is not a product on every device, so that
// workers on different processors update alike.
func TestElementwiseAgrees(t *testing.T) {
	seed := newRandom(t).Uint64()
	first := newDevice(t, isaPortable, Config{Threads: 1})
	want := elementwise(first, rand.New(rand.NewPCG(seed, 0)))
	onDevices(t, func(t *testing.T, d *Device) {
		for i, got := range elementwise(d, rand.New(rand.NewPCG(seed, 0))) {
			identical(t, got.name, got.values, want[i].values)
		}
	})
}

// identical wants the same bits. It reports the first that differ.
func identical(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s has %d elements, want %d", what, len(got), len(want))
	}
	for i, w := range want {
		if math.Float32bits(got[i]) != math.Float32bits(w) {
			t.Errorf("%s[%d] of %d is %x, want the bits of %x", what, i, len(want), got[i], w)
			return
		}
	}
}

// TestPortable holds every kernel of every instruction set against the portable ones, which the
// compiler made of plain C.
func TestPortable(t *testing.T) {
	seed := newRandom(t).Uint64()
	for _, p := range precisions {
		oracle := newDevice(t, isaPortable, Config{Threads: 1, Precision: p})
		want := everything(oracle, rand.New(rand.NewPCG(seed, 0)))
		for _, isa := range isas(p) {
			t.Run(fmt.Sprintf("%s/%s", p, isa), func(t *testing.T) {
				d := newDevice(t, isa, Config{Threads: 1, Precision: p})
				compared := newComparison(t, p)
				for i, got := range everything(d, rand.New(rand.NewPCG(seed, 0))) {
					last := strings.LastIndex(got.name, " ") // a problem, and its tensor
					compared.tensor(got.name[:last], got.name[last+1:], got.values,
						wide(want[i].values))
				}
				compared.end()
			})
		}
	}
}
