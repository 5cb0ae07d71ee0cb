package regress

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"rondo/corpus/series"
)

// adder forecasts that each column grows by half a standard deviation in a step.
type adder struct {
	ahead   int
	columns []int
	read    [][]float32
	closed  *bool
}

// Read predicts the next row from the row read last, from the one before it, and so on.
func (a *adder) Read(row []float32) (out []float32, _ error) {
	a.read = append(a.read, slices.Clone(row))
	for k := range a.ahead {
		from := a.read[max(0, len(a.read)-1-k)]
		for _, column := range a.columns {
			out = append(out, from[column]+0.5*float32(k+1))
		}
	}
	return out, nil
}

func (a *adder) Close() { *a.closed = true }

// double is a series of rows [2 t, 0], whose first column has a deviation of 2 and grows by twice
// what an adder says.
func double(rows int) (*series.Series, series.Scale) {
	s := &series.Series{Columns: []string{"x", "zero"}}
	for i := range rows {
		s.Values = append(s.Values, float64(2*i), 0)
	}
	return s, series.Scale{Mean: []float64{3, 0}, Std: []float64{2, 1}}
}

func opener(closed *bool) Open {
	return func(ahead int, columns []int) (Forecaster, error) {
		return &adder{ahead: ahead, columns: columns, closed: closed}, nil
	}
}

// Forecast numbers the rows, gives their predictions in the data's units, and goes on beyond the
// end as far as the predictions reach.
func TestForecast(t *testing.T) {
	for targets, rows := range map[string]int{"x": 4, "x,zero": 6} {
		s, scale := double(4)
		places, err := series.Select(s.Columns, targets)
		if err != nil {
			t.Fatal(err)
		}
		closed, n := false, 0
		err = Forecast(t.Context(), opener(&closed), s, scale, places, 3,
			func(row int, predicted []float64) error {
				n++
				if row != n || len(predicted) != 3*len(places) {
					t.Errorf("%s: row %d after %d, %v", targets, row, n, predicted)
				}
				for k := range 3 {
					read := row - 1 - k // the row that it is made from
					want := float64(2*read + k + 1)
					if got := predicted[k*len(places)]; 0 <= read && read < 4 && got != want {
						t.Errorf("%s: row %d, %d ahead: %v, want %v", targets, row, k+1, got, want)
					}
				}
				return nil
			})
		if err != nil || n != rows || !closed {
			t.Errorf("%s: %d rows, %v, closed: %v", targets, n, err, closed)
		}
	}
}

// A forecast k steps ahead is k too low. Steps for which the series is too short are left out.
func TestMeasure(t *testing.T) {
	s, scale := double(10)
	closed := false
	e, err := Measure(t.Context(), opener(&closed), s, scale, []int{0}, []int{1, 4, 16})
	if err != nil || !slices.Equal(e.Steps, []int{1, 4}) || e.Rows != 9 {
		t.Fatalf("%+v, %v", e, err)
	}
	for i, want := range []float64{1, 16} {
		if math.Abs(e.MSE[i]-want) > 1e-9 {
			t.Errorf("%d ahead: %v, want %v", e.Steps[i], e.MSE[i], want)
		}
	}
	if math.Abs(e.Loss-0.25) > 1e-9 { // of standardised columns
		t.Errorf("loss %v", e.Loss)
	}
}

// The errors of two columns add up in the data's units, in any order, and do not overflow.
func TestTally(t *testing.T) {
	u := NewUnits(series.Scale{Mean: []float64{0, 0, 0}, Std: []float64{1, 2, 4}}, []int{0, 2})
	tally := u.Tally()
	tally.Add([]float32{1, 2}, []float32{0, 2}) // an error of 1
	tally.Add([]float32{0, 0}, []float32{0, 1}) // of 4
	score := tally.Score()
	if score.Targets != 2 || score.Loss != 1 {
		t.Errorf("%+v", score)
	}
	m := u.Metrics(score)
	if len(m) != 1 || m[0].Name != "mse" || math.Abs(m[0].Value-4.25) > 1e-5 {
		t.Errorf("%v, want (1 + 16) / 2 columns / 2 rows", m)
	}
	for _, wrong := range []float32{float32(math.Inf(1)), float32(math.NaN()), 1e19} {
		tally := u.Tally()
		tally.Add([]float32{wrong, 0}, []float32{0, 0})
		if m := u.Metrics(tally.Score()); fmt.Sprint(m[0].Value) != "NaN" {
			t.Errorf("an error of %v: %v", wrong, m)
		}
	}
}
