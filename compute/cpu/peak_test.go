package cpu

import (
	"testing"
	"time"
)

// TestPeak measures the peak of every device, and counts what is measured: twice the rounds are
// twice the operations, and so are twice the threads.
func TestPeak(t *testing.T) {
	alone := map[string]float64{}
	onDevices(t, func(t *testing.T, d *Device) {
		one, two := d.backend.multiply(1), d.backend.multiply(2)
		if one <= 0 || two != 2*one {
			t.Errorf("%v operations of a round, %v of two", one, two)
		}
		if alone[d.backend.name()] == 0 {
			alone[d.backend.name()] = one // of one thread, which comes first
		}
		// Without cgo a device computes on the calling thread, whatever it is given.
		if more := one / alone[d.backend.name()]; more != 1 && more != float64(d.Threads()) {
			t.Errorf("%v times the operations of one thread on %d", more, d.Threads())
		}
		peak := d.Peak(20 * time.Millisecond)
		if !(peak > 1e6 && peak < 1e16) {
			t.Errorf("peak of %v operations a second", peak)
		}
		t.Logf("%s: %.0f GFLOP/s", d.Name(), peak/1e9)
	})
}
