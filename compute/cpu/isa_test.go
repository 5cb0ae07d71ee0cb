package cpu

import (
	flags "flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"rondo/compute"
)

var precisions = []compute.Precision{compute.FP32, compute.BF16}

// isas are the values of RONDO_CPU_ISA that mean different kernels of this build, processor and
// precision.
func isas(p compute.Precision) []string {
	var can, names []string
	for _, isa := range isaNames() {
		b, err := newBackend(1, p, isa)
		if err != nil {
			continue
		}
		if name := b.name(); !slices.Contains(names, name) {
			can, names = append(can, isa), append(names, name)
		}
		b.close()
	}
	return can
}

// seed makes the random problems: always the same ones unless it is given, as float32 leaves few
// digits of a sum that happens to cancel.
var seed = flags.Uint64("seed", 1, "of the random problems")

// newRandom draws from the seed.
func newRandom(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(*seed, 0))
}

// newDevice makes a device on an instruction set; it is closed when the test ends.
func newDevice(t testing.TB, isa string, c Config) *Device {
	t.Helper()
	t.Setenv(isaEnvironment, isa)
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// onDevices runs a test on every instruction set of this build and processor, in both precisions,
// with 1 to 3 threads.
func onDevices(t *testing.T, test func(t *testing.T, d *Device)) {
	for _, p := range precisions {
		onDevicesOf(t, p, test)
	}
}

func onDevicesOf(t *testing.T, p compute.Precision, test func(t *testing.T, d *Device)) {
	for _, isa := range isas(p) {
		for threads := 1; threads <= 3; threads++ {
			t.Run(fmt.Sprintf("%s/%s/%d", p, isa, threads), func(t *testing.T) {
				test(t, newDevice(t, isa, Config{Threads: threads, Precision: p}))
			})
		}
	}
}
