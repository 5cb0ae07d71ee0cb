package regress

import (
	"context"
	"slices"

	"rondo/corpus/series"
	"rondo/model"
)

// columns are the places of the columns that a network reads: all or, of sequences, those that are
// not predicted.
func columns(s *series.Series, targets []int, sequences bool) (read []int) {
	for i := range s.Columns {
		if !sequences || !slices.Contains(targets, i) {
			read = append(read, i)
		}
	}
	return read
}

// mostLanes bounds how many sequences are read at once.
const mostLanes = 64

// Last predicts the target columns of the last row of each sequence of T rows. It calls each with
// the row's number in the series and the predictions in the data's units, [C], which are valid
// until it returns.
func Last(
	ctx context.Context, m *model.Model, s *series.Series, scale series.Scale, targets []int,
	T int, each func(row int, predicted []float64) error,
) error {
	count, C := s.Rows()/T, len(targets)
	err := m.SetSeries(scale.Standard(nil, s, columns(s, targets, true)),
		scale.Standard(nil, s, targets))
	if err != nil {
		return err
	}
	B := min(count, mostLanes)
	e, err := m.NewEvaluator(T, B)
	if err != nil {
		return err
	}
	defer e.Close()
	rows, y, out := make([]int32, T*B), make([]float32, T*B*C), make([]float64, C)
	for first := 0; first < count; first += B {
		for i := range rows {
			rows[i] = int32(min(first+i%B, count-1)*T + i/B)
		}
		e.ZeroState()
		if err := e.Predict(rows, y); err != nil {
			return err
		}
		for b := range min(B, count-first) {
			for c, column := range targets {
				v := float64(y[((T-1)*B+b)*C+c])
				out[c] = v*scale.Std[column] + scale.Mean[column]
			}
			if err := each((first+b+1)*T-1, out); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// MeasureLast compares the predictions of Last with the series.
func MeasureLast(
	ctx context.Context, m *model.Model, s *series.Series, scale series.Scale, targets []int,
	T int,
) (e Errors, err error) {
	e = Errors{Steps: []int{1}, MSE: make([]float64, 1), Rows: int64(s.Rows() / T)}
	n := float64(len(targets)) * float64(e.Rows)
	err = Last(ctx, m, s, scale, targets, T, func(row int, predicted []float64) error {
		for c, column := range targets {
			d := predicted[c] - s.Row(row)[column]
			e.MSE[0] += d * d / n
			d /= scale.Std[column]
			e.Loss += d * d / n
		}
		return nil
	})
	return e, err
}
