package cpu

import (
	"strings"
	"testing"

	"rondo/compute"
	"rondo/compute/devicetest"
)

// TestConformance holds every instruction set of this build and processor, in both precisions, to
// the contract of a device. What it computes does not depend on the threads: see TestThreadsAgree.
func TestConformance(t *testing.T) {
	ran := map[string]bool{}
	for _, p := range precisions {
		for _, isa := range isas(p) {
			ran[isa] = true
			t.Run(isa, func(t *testing.T) { conform(t, isa, p) })
		}
	}
	if !ran[isaPortable] {
		t.Error("the portable kernels were not tested")
	}
}

func conform(t *testing.T, isa string, p compute.Precision) {
	t.Setenv(isaEnvironment, isa)
	trials, pure := 35, strings.Contains(newDevice(t, isa, Config{Threads: 1}).Name(), "pure Go")
	if testing.Short() && !pure {
		trials = 12
	}
	devicetest.Run(t, devicetest.Config{
		Precisions: []compute.Precision{p},
		Trials:     trials,
		// A weight's gradient is summed over more rows than one pass takes, and an output layer's
		// goes in chunks; whole blocks.
		Layers: []compute.RecurrentShape{{Cell: compute.GRU, T: 70, B: 23, D: 5, H: 33},
			{Cell: compute.LSTM, T: 9, B: 16, D: 64, H: 64},
			{Cell: compute.RNNTanh, T: 3, B: 67, D: 32, H: 32}},
		Outputs: []compute.OutputShape{{N: 1500, H: 40, V: 70}},
		Open: func(t testing.TB, p compute.Precision) compute.Device {
			d, err := New(Config{Threads: 3, Precision: p})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Endless: pure,
	})
}
