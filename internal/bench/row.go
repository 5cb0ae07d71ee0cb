package bench

import (
	"math"
	"slices"
	"time"

	"rondo/compute"
)

// Device is what is measured.
type Device interface {
	compute.Device
	// Peak returns how many floating-point operations a second the device's product instruction
	// does in registers, on all of the device's threads, measured for so long.
	Peak(window time.Duration) float64
	// Bytes returns how much memory the device holds, for what Alloc gave and for workspaces, and
	// the most that it has held.
	Bytes() (now, peak int64)
	Threads() int
	Precision() compute.Precision
}

// peakWindow is how long the peak is measured before each row.
const peakWindow = 200 * time.Millisecond

// A Case is what a row measures. It is flat, as JSON has it.
type Case struct {
	Cell      string `json:"cell"`
	Hidden    int    `json:"hidden"`
	Layers    int    `json:"layers"`
	Batch     int    `json:"batch"`
	BPTT      int    `json:"bptt"`
	Vocab     int    `json:"vocab"`
	Embed     int    `json:"embed"`
	Precision string `json:"precision"`
	Threads   int    `json:"threads"`
}

func newCase(s Shape, dev Device) Case {
	return Case{Cell: s.CellName(), Hidden: s.Hidden, Layers: s.Layers, Batch: s.Batch,
		BPTT: s.BPTT, Vocab: s.Vocab, Embed: s.Embed, Precision: dev.Precision().String(),
		Threads: dev.Threads()}
}

// median of at least one value.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// ratio is a/b, or 0 where there is nothing to compare with.
func ratio(a, b float64) float64 {
	if b <= 0 || math.IsNaN(b) {
		return 0
	}
	return a / b
}
