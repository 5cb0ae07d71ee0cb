package model

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/cpu"
)

// newDevice makes a CPU device of one thread for float32, and closes it after the test.
func newDevice(t testing.TB) compute.Device { return newDeviceOf(t, compute.FP32) }

func newDeviceOf(t testing.TB, p compute.Precision) compute.Device {
	t.Helper()
	d, err := cpu.New(cpu.Config{Threads: 1, Precision: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// newModel makes a model, and closes it after the test.
func newModel(t testing.TB, cfg Config) *Model { return newModelOn(t, cfg, newDevice(t)) }

func newModelOn(t testing.TB, cfg Config, dev compute.Device) *Model {
	t.Helper()
	m, err := New(cfg, dev)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// newSegment makes a segment, and closes it after the test.
func newSegment(t testing.TB, m *Model, T, B int) *Segment {
	t.Helper()
	s, err := m.NewSegment(T, B)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// network is a Model or a Labeller.
type network interface {
	Device() compute.Device
	Layout() []View
	Params() []float32
	Gradients() []float32
}

// download returns a copy of device memory.
func download(m network, x []float32) []float32 {
	host := make([]float32, len(x))
	m.Device().Download(host, x)
	return host
}

// randomInput draws a segment's tokens. Some targets do not count.
func randomInput(rng *rand.Rand, T, B, V int) SegmentInput {
	in := SegmentInput{Scale: 1 / float32(T*B), Step: 3}
	for range T * B {
		in.Inputs = append(in.Inputs, int32(rng.IntN(V)))
		in.Targets = append(in.Targets, int32(rng.IntN(V+1))-1)
	}
	for b := range B {
		in.Lanes = append(in.Lanes, 10+3*b)
	}
	return in
}

// run runs a segment and fails the test on an error.
func run(t testing.TB, s *Segment, in SegmentInput) float64 {
	t.Helper()
	loss, err := s.Run(in)
	if err != nil {
		t.Fatal(err)
	}
	return loss
}

// relative is the largest difference between got and want over the largest magnitude of want.
func relative[F float32 | float64](got []float32, want []F) float64 {
	var difference, magnitude float64
	for i := range want {
		difference = max(difference, math.Abs(float64(got[i])-float64(want[i])))
		magnitude = max(magnitude, math.Abs(float64(want[i])))
	}
	if difference == 0 {
		return 0
	}
	return difference / magnitude
}

// shapes are models that together have every part, small enough for slow oracles.
func shapes() map[string]Config {
	all := plainShapes()
	for _, cell := range compute.Cells() {
		c := Config{Cell: cell, Vocab: 6, Hidden: 5, Layers: 2, Seed: 7, Dropout: 0.4,
			DeepTransition: 2, DeepOutput: 1}
		all[cell.String()+"/2/deep"] = c
		c.Embed, c.DeepInput, c.DropoutInput, c.Skip, c.TieWeights = 4, 2, 0.3, true, true
		all[cell.String()+"/2/deep-tied"] = c
		c = Config{Cell: cell, Vocab: 6, Embed: 4, Hidden: 5, Layers: 2, Seed: 7, Dropout: 0.4}
		c.SkipThroughTime = 2
		all[cell.String()+"/2/through-time"] = c
		c.SkipThroughTime, c.Skip, c.LayerNorm, c.DeepTransition = 4, true, true, 1
		all[cell.String()+"/2/deep-through-time"] = c
		all[cell.String()+"/2/regularised"] = regularised(cell)
		all[cell.String()+"/2/adaptive"] = Config{Cell: cell, Vocab: 9, Embed: 4, Hidden: 5,
			Layers: 2, Seed: 7, Dropout: 0.4, Cutoffs: []int{2, 5}}
	}
	return all
}

// some returns all configurations. With -short it returns one of each kind, with one cell after the
// other. A name is CELL/KIND.
func some[C any](all map[string]C) map[string]C {
	if !testing.Short() {
		return all
	}
	names := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		_, kind, _ := strings.Cut(name, "/")
		names[kind] = append(names[kind], name)
	}
	one := map[string]C{}
	for i, kind := range slices.Sorted(maps.Keys(names)) {
		name := names[kind][i%len(names[kind])]
		one[name] = all[name]
	}
	return one
}

// regularised is a network with every regulariser that goes with Recompute.
func regularised(cell compute.Cell) Config {
	none := 0.0
	c := Config{Cell: cell, Vocab: 6, Embed: 4, Hidden: 5, Layers: 2, Seed: 7, Dropout: 0.4,
		DropoutLocked: true, DropoutOutput: &none, DropoutWords: 0.3, ActivationL2: 2}
	if cell.HiddenGates() > 0 {
		c.WeightDrop = 0.4
	}
	return c
}

// plainShapes are those without deep inputs, transitions and outputs.
func plainShapes() map[string]Config {
	all := map[string]Config{}
	for _, cell := range compute.Cells() {
		for layers := 1; layers <= 3; layers++ {
			c := Config{Cell: cell, Vocab: 6, Hidden: 5, Layers: layers, Seed: 7}
			add := func(what string, c Config) {
				all[fmt.Sprintf("%v/%d/%s", cell, layers, what)] = c
			}
			add("one-hot", c)
			c.Dropout = 0.4
			add("dropout", c)
			c.Embed, c.DropoutInput = 5, 0.3
			add("embed", c)
			c.DropoutLocked = true
			add("locked", c)
			c.DropoutLocked, c.LayerNorm = false, true
			add("norm", c)
			if c.Skip = layers > 1; c.Skip {
				add("skip-norm", c)
				c.LayerNorm, c.Dropout = false, 0
				add("skip", c)
				c.Dropout = 0.4
			}
			c.LayerNorm, c.Skip = false, false
			c.TieWeights = true
			add("tied", c)
			c.Embed = 4
			add("tied-projected", c)
		}
	}
	return all
}
