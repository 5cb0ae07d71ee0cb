package bench

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"rondo/compute"
)

// changingPeak is a device on a machine that does other things too.
type changingPeak struct {
	Device
	threads int
	rates   *[]float64
}

func (d changingPeak) Threads() int { return d.threads }

func (d changingPeak) Peak(time.Duration) float64 {
	rate := (*d.rates)[0]
	*d.rates = (*d.rates)[1:]
	return rate
}

// A peak is the highest rate of the run, measured or reached by products.
func TestMeterKeepsTheHighest(t *testing.T) {
	rates := []float64{5, 3, 4}
	one := changingPeak{newDevice(t), 1, &rates}
	two := changingPeak{one.Device, 2, &rates}
	m := NewMeter(0)
	m.look(one)
	m.look(one)
	if got := m.peak(one); got != 5 {
		t.Errorf("%v after 5 and 3", got)
	}
	m.look(two)
	if got := m.peak(two); got != 5 {
		t.Errorf("two threads that were seen at 4 have %v, and one has 5", got)
	}
	m.reached(two, 9)
	if got, other := m.peak(two), m.peak(one); got != 9 || other != 5 {
		t.Errorf("%v and %v, want 9 for two threads, and 5 for one", got, other)
	}
	if one.Precision() != compute.FP32 {
		t.Errorf("the test's device computes in %v", one.Precision())
	}
}

func TestFigure(t *testing.T) {
	type row struct {
		A, B Figure
	}
	text, err := json.Marshal(row{1.5, Figure(math.NaN())})
	if err != nil || string(text) != `{"A":1.5,"B":null}` {
		t.Errorf("%s, %v", text, err)
	}
	var r row
	if err := json.Unmarshal(text, &r); err != nil || r.A != 1.5 || r.B.Known() {
		t.Errorf("%+v, %v", r, err)
	}
	if err := json.Unmarshal([]byte(`{"A":"x"}`), &r); err == nil {
		t.Error("a word is a figure")
	}
}
