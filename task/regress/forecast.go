package regress

import (
	"context"

	"rondo/corpus/series"
)

// Forecaster predicts a series: see model.Forecaster.
type Forecaster interface {
	// Read reads the next row and returns the predictions, [ahead, C].
	Read(row []float32) ([]float32, error)
	Close()
}

// Open makes a network's Forecaster of these columns.
type Open func(ahead int, columns []int) (Forecaster, error)

// Forecast predicts each row of a series from the rows up to 1, 2, ... and ahead steps before it.
// It calls each with every row's number, from 1, and its predictions in the data's units:
// [ahead, C].
// Prediction j is j+1 steps ahead. It is undefined if j >= row, because no row is that early. The
// row after the series' end is predicted too. If the network predicts all columns, so are the
// ahead-1 rows after that one, but of these only prediction ahead-1 is always defined. The
// predictions are valid until each returns.
func Forecast(
	ctx context.Context, open Open, s *series.Series, scale series.Scale, targets []int,
	ahead int, each func(row int, predicted []float64) error,
) error {
	f, err := open(ahead, targets)
	if err != nil {
		return err
	}
	defer f.Close()
	every, err := series.Select(s.Columns, "")
	if err != nil {
		return err
	}
	inputs, F := scale.Standard(nil, s, every), len(every)
	rows := s.Rows()
	if len(targets) == F { // the inputs after the end do not matter: no forecast begins there
		rows += ahead - 1
	}
	out := make([]float64, ahead*len(targets))
	for i := range rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := min(i, s.Rows()-1) * F
		predicted, err := f.Read(inputs[at : at+F])
		if err != nil {
			return err
		}
		for k, v := range predicted {
			column := targets[k%len(targets)]
			out[k] = float64(v)*scale.Std[column] + scale.Mean[column]
		}
		if err := each(i+1, out); err != nil {
			return err
		}
	}
	return nil
}

// Errors are the mean squared errors of a series' forecasts.
type Errors struct {
	Steps []int     // ahead
	MSE   []float64 // in the data's units: the mean over the columns
	Loss  float64   // one step ahead, of standardised columns
	Rows  int64     // that were predicted one step ahead
}

// Measure forecasts a series and compares. It leaves out steps for which the series is too short.
func Measure(
	ctx context.Context, open Open, s *series.Series, scale series.Scale, targets []int,
	steps []int,
) (e Errors, err error) {
	most := 1
	for _, k := range steps {
		if k < s.Rows() {
			e.Steps, most = append(e.Steps, k), max(most, k)
		}
	}
	e.MSE, e.Rows = make([]float64, len(e.Steps)), int64(s.Rows()-1)
	C := float64(len(targets))
	err = Forecast(ctx, open, s, scale, targets, most, func(row int, predicted []float64) error {
		if row >= s.Rows() {
			return nil
		}
		for c, column := range targets {
			truth := s.Row(row)[column]
			for i, k := range e.Steps {
				if k <= row {
					d := predicted[(k-1)*len(targets)+c] - truth
					e.MSE[i] += d * d / C / float64(s.Rows()-k)
				}
			}
			d := (predicted[c] - truth) / scale.Std[column]
			e.Loss += d * d / C / float64(e.Rows)
		}
		return nil
	})
	return e, err
}
