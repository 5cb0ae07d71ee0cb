//go:build cuda

package cuda_test

import (
	"testing"

	"rondo/compute"
	"rondo/compute/cuda"
	"rondo/compute/devicetest"
)

// TestConformance holds the device to the contract, in every precision; with -short in two, on
// fewer problems.
func TestConformance(t *testing.T) {
	precisions, trials := []compute.Precision{compute.FP32, compute.BF16}, 2
	if !testing.Short() {
		precisions, trials = append(precisions, compute.TF32, compute.FP16), 5
	}
	devicetest.Run(t, devicetest.Config{
		Precisions: precisions,
		Open: func(t testing.TB, p compute.Precision) compute.Device {
			d, err := cuda.New(cuda.Config{Precision: p})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Trials: trials,
		// Hidden states of whole tiles, and of more than one; logits of more than a block.
		Layers: []compute.RecurrentShape{{Cell: compute.LSTM, T: 5, B: 16, D: 48, H: 64},
			{Cell: compute.GRU, T: 4, B: 33, D: 16, H: 96}},
	})
}
