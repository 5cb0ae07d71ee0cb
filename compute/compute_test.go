package compute

import "testing"

// The names are those that parse, and nothing else does.
func TestNames(t *testing.T) {
	for cell := RNNTanh; cell <= LSTM; cell++ {
		if got, err := ParseCell(cell.String()); err != nil || got != cell {
			t.Errorf("%q is %v, %v; want %d", cell.String(), got, err, int(cell))
		}
		if cell.Gates() < 1 {
			t.Errorf("%v has %d gates", cell, cell.Gates())
		}
	}
	for _, p := range []Precision{FP32, BF16, TF32, FP16} {
		if got, err := ParsePrecision(p.String()); err != nil || got != p {
			t.Errorf("%q is %v, %v; want %d", p.String(), got, err, int(p))
		}
	}
	for _, name := range []string{"", "LSTM", "transformer", Cell(-1).String(), Cell(5).String(),
		Precision(4).String()} {
		if got, err := ParseCell(name); err == nil {
			t.Errorf("%q is the cell %v", name, got)
		}
		if got, err := ParsePrecision(name); err == nil {
			t.Errorf("%q is the precision %v", name, got)
		}
	}
}
