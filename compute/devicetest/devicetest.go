// Package devicetest is the test suite that every compute.Device must pass. It tests the contract
// through the interface alone, against an oracle in float64 that is written from the equations. It
// also has stand-ins for kinds of devices that a test's machine may lack: one that records, and one
// whose memory the host cannot touch.
//
// It knows no particular device and no models. It may import compute.
package devicetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"rondo/compute"
)

// Config names the device to test, and further problems beside the suite's own.
type Config struct {
	// Open opens a new device, which the suite closes.
	Open       func(t testing.TB, p compute.Precision) compute.Device
	Precisions []compute.Precision
	// Trials is how many random problems of each kind there are; 0: 10.
	Trials int
	// Seed is the seed of random problems. Bounds are relative to a tensor's largest element, so a
	// rare seed has one that nearly cancels; with a fixed seed every run is the same.
	Seed uint64
	// Layers and Outputs are shapes at which this device changes how it works.
	Layers  []compute.RecurrentShape
	Outputs []compute.OutputShape
	// Endless: a lack of memory ends the process, as Go's does, and must not be tried.
	Endless bool
}

// Run runs the suite.
func Run(t *testing.T, c Config) {
	if c.Trials == 0 {
		c.Trials = 10
	}
	for _, p := range c.Precisions {
		t.Run(p.String(), func(t *testing.T) {
			for _, test := range tests() {
				t.Run(test.name, func(t *testing.T) { test.run(newRig(t, c, p)) })
			}
		})
	}
}

type test struct {
	name string
	run  func(*rig)
}

func tests() []test {
	return []test{
		{"name", testName},
		{"memory", testMemory}, {"lack of memory", testLack},
		{"elementwise", testElementwise}, {"sum of squares", testSumSquares},
		{"rows", testRows}, {"dropout", testDropout}, {"copied rows", testCopyRows},
		{"pool", testPool}, {"pool of equal values", testPoolOrder},
		{"tanh", testTanh}, {"attention", testAttention},
		{"attention with NaN", testAttentionNaN}, {"layer normalisation", testLayerNorm},
		{"update", testUpdate},
		{"clipper", testClipper}, {"replayed clipper", testClipperReplay},
		{"gemm", testGemm}, {"gemm overwrites", testGemmOverwrites},
		{"layers", testLayers}, {"layers in segments", testSegments},
		{"layers in order", testOrder}, {"layers with NaN", testLayerNaN},
		{"output", testOutput}, {"output without targets", testMasked},
		{"output with NaN", testOutputNaN}, {"squares", testSquares}, {"adaptive", testAdaptive},
		{"shapes", testShapes}, {"traces", testTraces}, {"slope", testSlope},
		{"determinism", testDeterminism}, {"recorder", testRecorder}, {"stager", testStager},
	}
}

// rig is a device under test, with helpers for tests.
type rig struct {
	*testing.T
	Config
	precision compute.Precision
	dev       compute.Device
	random    *rand.Rand
}

func newRig(t *testing.T, c Config, p compute.Precision) *rig {
	t.Helper()
	dev := c.Open(t, p)
	t.Cleanup(dev.Close)
	return &rig{t, c, p, dev, rand.New(rand.NewPCG(c.Seed, 0))}
}

// put is a copy of x in device memory; nil stays nil.
func put(dev compute.Device, x []float64) []float32 {
	if x == nil {
		return nil
	}
	host := make([]float32, len(x))
	for i, v := range x {
		host[i] = float32(v)
	}
	return upload(dev, host)
}

func upload(dev compute.Device, host []float32) []float32 {
	x := dev.Alloc(len(host))
	dev.Upload(x, host)
	return x
}

// get is a copy of x in host memory.
func get(dev compute.Device, x []float32) []float32 {
	host := make([]float32, len(x))
	dev.Download(host, x)
	return host
}

// junk is device memory full of NaN, for results that a call must overwrite; nil if n is 0.
func junk(dev compute.Device, n int) []float32 {
	if n == 0 {
		return nil
	}
	host := make([]float32, n)
	for i := range host {
		host[i] = float32(math.NaN())
	}
	return upload(dev, host)
}

// normal draws float32 values, so that a device and the oracle get the same.
func normal(random *rand.Rand, n int, size float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = float64(float32(size * random.NormFloat64()))
	}
	return x
}

func narrow(x []float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}

// ids draws n of them below limit.
func ids(random *rand.Rand, n, limit int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(random.IntN(limit))
	}
	return x
}

// panics expects f to panic for the reason what, and not for a lack of memory or a failure of the
// device.
func (r *rig) panics(what string, f func()) {
	r.Helper()
	defer func() {
		switch p := recover().(type) {
		case nil:
			r.Errorf("%s: no panic", what)
		case *compute.MemoryError, *compute.DeviceError:
			r.Errorf("%s: %v, which is no broken invariant", what, p)
		}
	}()
	f()
}

func testName(r *rig) {
	if name := r.dev.Name(); strings.TrimSpace(name) == "" || strings.Contains(name, "\n") {
		r.Errorf("the device's name is %q", name)
	}
}

// Result is a tensor that came out of a problem.
type Result struct {
	Problem, Tensor string
	Values          []float32
}

// results collects the results of a problem.
type results struct {
	dev     compute.Device
	problem string
	all     []Result
}

func (c *results) add(tensor string, x []float32) {
	c.all = append(c.all, Result{c.problem, tensor, get(c.dev, x)})
}

// Everything runs every kernel of a device on problems that the random source decides, about so
// many of each kind, and returns all that they compute.
func Everything(dev compute.Device, random *rand.Rand, trials int) []Result {
	var all []Result
	for _, p := range layerProblems(random, trials, nil) {
		all = append(all, p.run(dev)...)
	}
	for _, p := range outputProblems(random, trials, nil) {
		got, _ := p.run(dev)
		all = append(all, got...)
	}
	for _, p := range gemmProblems(random, trials) {
		all = append(all, p.run(dev)...)
	}
	return append(all, Elementwise(dev, random)...)
}

// testDeterminism wants the same bits of two devices, and of one that has worked.
func testDeterminism(r *rig) {
	seed := r.random.Uint64()
	run := func(dev compute.Device) []Result {
		return Everything(dev, rand.New(rand.NewPCG(seed, 0)), min(r.Trials, 10))
	}
	want := run(r.dev)
	other := r.Open(r, r.precision)
	defer other.Close()
	for name, dev := range map[string]compute.Device{"another device": other, "again": r.dev} {
		for i, got := range run(dev) {
			SameBits(r, fmt.Sprintf("%s: %s %s", name, got.Problem, got.Tensor), got.Values,
				want[i].Values)
		}
	}
}
