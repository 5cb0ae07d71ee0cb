// Package series reads time series: one row a time step, columns of numbers, from CSV, NumPy or
// Parquet files. A series lies in memory. It may import corpus.
package series

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gocloud.dev/blob"

	"rondo/corpus"
)

// Limits of a series.
const (
	MaxColumns = 4096
	MaxValues  = 1 << 27 // 1 GiB
)

// Series is a table of numbers. All are finite.
type Series struct {
	Columns []string  // names, distinct
	Values  []float64 // [rows, columns]
}

// Open reads a file or blob whose name ends in .csv, .npy, .parquet, or .zip with one such file.
// Columns without names are called 1, 2 and so on. Errors name the file and the line or row.
func Open(
	ctx context.Context, source string, open func(context.Context, string) (*blob.Bucket, error),
) (s *Series, err error) {
	parse, err := parserOf(source)
	if err != nil {
		return nil, err
	}
	err = corpus.ReadSource(ctx, source, open, func(r io.Reader) error {
		s = &Series{}
		if err := parse(ctx, r, s); err != nil {
			return err
		}
		if len(s.Values) == 0 {
			return errors.New("it has no row of numbers: give a file with at least two")
		}
		return nil
	})
	return s, err
}

// Rows is the number of rows.
func (s *Series) Rows() int { return len(s.Values) / len(s.Columns) }

// Row returns a row.
func (s *Series) Row(i int) []float64 {
	n := len(s.Columns)
	return s.Values[i*n : (i+1)*n : (i+1)*n]
}

// Fingerprint is a SHA-256 of the columns and the values, in hexadecimal.
func (s *Series) Fingerprint() string {
	h := sha256.New()
	fmt.Fprintf(h, "series %q", s.Columns)
	var bytes [8]byte
	for _, v := range s.Values {
		binary.LittleEndian.PutUint64(bytes[:], math.Float64bits(v))
		h.Write(bytes[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Select returns the places of the named columns, which commas separate; "": all.
func Select(columns []string, names string) (places []int, err error) {
	if names == "" {
		for i := range columns {
			places = append(places, i)
		}
		return places, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		i := slices.Index(columns, name)
		if i < 0 {
			return nil, fmt.Errorf("--target %s: there is no column %q: the columns are %.200s",
				names, name, strings.Join(columns, ", "))
		}
		if slices.Contains(places, i) {
			return nil, fmt.Errorf("--target %s names the column %q twice", names, name)
		}
		places = append(places, i)
	}
	return places, nil
}

// Scale standardises columns to a mean of 0 and a variance of 1.
type Scale struct{ Mean, Std []float64 }

// Measure returns the scale of the first rows. A constant column is only shifted.
func (s *Series) Measure(rows int) Scale {
	n := len(s.Columns)
	scale := Scale{make([]float64, n), make([]float64, n)}
	for i, v := range s.Values[:rows*n] {
		scale.Mean[i%n] += v / float64(rows)
	}
	for i, v := range s.Values[:rows*n] {
		d := v - scale.Mean[i%n]
		scale.Std[i%n] += d * d / float64(rows)
	}
	for i, variance := range scale.Std {
		if scale.Std[i] = math.Sqrt(variance); scale.Std[i] == 0 {
			scale.Std[i] = 1
		}
	}
	return scale
}

// Standard appends the standardised columns at these places of all rows to dst.
func (c Scale) Standard(dst []float32, s *Series, places []int) []float32 {
	dst = slices.Grow(dst, s.Rows()*len(places))
	for i := range s.Rows() {
		row := s.Row(i)
		for _, p := range places {
			dst = append(dst, float32((row[p]-c.Mean[p])/c.Std[p]))
		}
	}
	return dst
}

// add appends a row. Its error does not name the place.
func (s *Series) add(row []float64) error {
	if len(s.Values)+len(row) > MaxValues {
		return fmt.Errorf("more than %d numbers: give a shorter file", MaxValues)
	}
	for i, v := range row {
		if v-v != 0 {
			return fmt.Errorf("column %q is %v: leave out such rows, or fill them", s.Columns[i], v)
		}
	}
	s.Values = append(s.Values, row...)
	return nil
}

// name sets the columns' names; nil: numbers.
func (s *Series) name(names []string, n int) error {
	if n < 1 || n > MaxColumns {
		return fmt.Errorf("%d columns are not in [1, %d]", n, MaxColumns)
	}
	for i := range n {
		name := strconv.Itoa(i + 1)
		if names != nil {
			name = strings.TrimSpace(names[i])
		}
		if name == "" || name == corpus.Unknown || slices.Contains(s.Columns, name) {
			return fmt.Errorf("column %d is named %q: each needs a name of its own", i+1, name)
		}
		s.Columns = append(s.Columns, name)
	}
	return nil
}
