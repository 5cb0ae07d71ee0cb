package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"rondo/compute/devicetest"
)

// everything runs every kernel of a device on problems drawn from a seed, the output layer also
// with some of its logits kept, and returns the results.
func everything(d *Device, seed uint64) []devicetest.Result {
	random := rand.New(rand.NewPCG(seed, 0))
	all := devicetest.Everything(d, random, 35)
	for _, c := range outputCases(random) {
		_, gradients := c.run(d)
		for _, g := range gradients {
			all = append(all, devicetest.Result{Problem: c.name, Tensor: g.name, Values: g.values})
		}
	}
	return all
}

// sameBits wants two devices to have computed the same.
func sameBits(t *testing.T, who string, got, want []devicetest.Result) {
	t.Helper()
	for i, g := range got {
		devicetest.SameBits(t, fmt.Sprintf("%s: %s %s", who, g.Problem, g.Tensor), g.Values,
			want[i].Values)
	}
}

// TestThreadsAgree: every kernel has the same bits with any number of threads.
func TestThreadsAgree(t *testing.T) {
	seed := newRandom(t).Uint64()
	for _, p := range precisions {
		for _, isa := range isas(p) {
			t.Run(fmt.Sprintf("%s/%s", p, isa), func(t *testing.T) {
				compute := func(threads int) []devicetest.Result {
					d := newDevice(t, isa, Config{Threads: threads, Precision: p})
					return everything(d, seed)
				}
				alone := compute(1)
				for _, threads := range []int{2, 3} {
					sameBits(t, fmt.Sprint(threads, " threads"), compute(threads), alone)
				}
			})
		}
	}
}

// TestElementwiseAgrees: all operations but products have the same bits on every device, so that
// workers on different processors keep the same parameters.
func TestElementwiseAgrees(t *testing.T) {
	seed := newRandom(t).Uint64()
	run := func(d *Device) []devicetest.Result {
		return devicetest.Elementwise(d, rand.New(rand.NewPCG(seed, 0)))
	}
	want := run(newDevice(t, isaPortable, Config{Threads: 1}))
	onDevices(t, func(t *testing.T, d *Device) { sameBits(t, d.Name(), run(d), want) })
}

// TestPortable holds every kernel of every instruction set against the portable ones, which the
// compiler made of plain C.
func TestPortable(t *testing.T) {
	seed := newRandom(t).Uint64()
	for _, p := range precisions {
		want := everything(newDevice(t, isaPortable, Config{Threads: 1, Precision: p}), seed)
		for _, isa := range isas(p) {
			t.Run(fmt.Sprintf("%s/%s", p, isa), func(t *testing.T) {
				d := newDevice(t, isa, Config{Threads: 1, Precision: p})
				compared := devicetest.NewComparison(t, devicetest.BoundsOf(p))
				for i, got := range everything(d, seed) {
					compared.Tensor(got.Problem, got.Tensor, got.Values, wide(want[i].Values))
				}
				compared.End()
			})
		}
	}
}
