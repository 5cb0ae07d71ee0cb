package bench

import (
	"math"
	"slices"
	"strconv"
	"time"

	"rondo/compute"
)

// Device is a device that can be measured.
type Device interface {
	compute.Device
	// Peak measures, for window, the rate of the device's product instruction on registers with all
	// its threads, in floating-point operations a second.
	Peak(window time.Duration) float64
	// Bytes returns the memory that the device holds, for Alloc and workspaces, and its peak.
	Bytes() (now, peak int64)
	Threads() int
	Precision() compute.Precision
}

// peakWindow is how long the peak is measured before each row, and after it.
const peakWindow = 100 * time.Millisecond

// A Meter measures one device after the other. It compares each with the highest peak that it has
// seen with the same precision and number of threads: a busy machine shows less than its peak, and
// never more.
type Meter struct {
	cache int64
	peaks map[setting]float64
}

// setting is the key of a peak.
type setting struct {
	precision compute.Precision
	threads   int
}

// NewMeter makes a Meter for a machine whose largest cache has this many bytes; 0: unknown.
func NewMeter(cache int64) *Meter {
	return &Meter{cache: cache, peaks: map[setting]float64{}}
}

// look measures the device's peak once more.
func (m *Meter) look(dev Device) { m.reached(dev, dev.Peak(peakWindow)) }

// reached records that the device has done this many operations a second, so its peak is not below.
func (m *Meter) reached(dev Device, rate float64) {
	at := setting{dev.Precision(), dev.Threads()}
	m.peaks[at] = max(m.peaks[at], rate)
}

// peak is the highest rate seen, in operations a second. More threads can reach what fewer have.
func (m *Meter) peak(dev Device) float64 {
	highest := 0.0
	for at, rate := range m.peaks {
		if at.precision == dev.Precision() && at.threads <= dev.Threads() {
			highest = max(highest, rate)
		}
	}
	return highest
}

// A Case is the shape and setting of a row. It is flat, as in JSON.
type Case struct {
	Cell      string `json:"cell"`
	Hidden    int    `json:"hidden"`
	Layers    int    `json:"layers"`
	Batch     int    `json:"batch"`
	BPTT      int    `json:"bptt"`
	Vocab     int    `json:"vocab"`
	Embed     int    `json:"embed"`
	Recompute int    `json:"recompute"`
	Adaptive  string `json:"adaptive_softmax,omitempty"`
	Precision string `json:"precision"`
	Threads   int    `json:"threads"`
}

func newCase(s Shape, dev Device) Case {
	return Case{Cell: s.Cell.String(), Hidden: s.Hidden, Layers: s.Layers, Batch: s.Batch,
		BPTT: s.BPTT, Vocab: s.Vocab, Embed: s.Embed, Recompute: s.Recompute, Adaptive: s.Adaptive,
		Precision: dev.Precision().String(), Threads: dev.Threads()}
}

// A Figure is a number, or NaN where the machine's noise hides it, which JSON has as null.
type Figure float64

// Known is false of NaN.
func (f Figure) Known() bool { return !math.IsNaN(float64(f)) }

// MarshalJSON writes a number or null.
func (f Figure) MarshalJSON() ([]byte, error) {
	if !f.Known() {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(f), 'g', -1, 64), nil
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (f *Figure) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*f = Figure(math.NaN())
		return nil
	}
	v, err := strconv.ParseFloat(string(text), 64)
	*f = Figure(v)
	return err
}

// Median of at least one value.
func Median(values []float64) float64 {
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
