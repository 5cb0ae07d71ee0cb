package series

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"rondo/corpus"
)

// readParquet reads a Parquet file of columns of numbers. Truth values are 0 and 1.
func readParquet(ctx context.Context, r io.Reader, to *Series) (err error) {
	at, size, err := wholeFile(r)
	if err != nil {
		return err
	}
	defer func() {
		if cause := recover(); cause != nil { // the library panics on some damaged files
			err = fmt.Errorf("it is a damaged Parquet file: %v", cause)
		}
	}()
	file, err := corpus.OpenParquet(at, size)
	if err != nil {
		return err
	}
	columns := file.Root().Columns()
	var names []string
	for _, c := range columns {
		names = append(names, c.Name())
	}
	if err := to.name(names, len(columns)); err != nil {
		return err
	}
	rows := file.NumRows()
	if rows < 0 || rows > int64(MaxValues/len(columns)) {
		return fmt.Errorf("%d rows of %d columns are more than %d numbers", rows, len(columns),
			MaxValues)
	}
	to.Values = make([]float64, int(rows)*len(columns))
	for i, c := range columns {
		if err := to.readColumn(ctx, c, i); err != nil {
			return fmt.Errorf("column %q: %w", c.Name(), err)
		}
	}
	return nil
}

// wholeFile is the file that r reads. That of a bucket or an archive is copied to memory.
func wholeFile(r io.Reader) (at io.ReaderAt, size int64, err error) {
	if file, ok := r.(interface {
		io.ReaderAt
		io.Seeker
	}); ok {
		size, err = file.Seek(0, io.SeekEnd)
		return file, size, err
	}
	all, err := io.ReadAll(io.LimitReader(r, maxZipped+1))
	if err == nil && len(all) > maxZipped {
		err = fmt.Errorf("it is longer than %d bytes: give it as a file", maxZipped)
	}
	return bytes.NewReader(all), int64(len(all)), err
}

// readColumn reads a column into Values, which have room for its rows.
func (s *Series) readColumn(ctx context.Context, c *parquet.Column, place int) error {
	number, err := numberOf(c)
	if err != nil {
		return err
	}
	pages := c.Pages()
	defer pages.Close()
	values, row := make([]parquet.Value, 1024), 0
	for {
		page, err := pages.ReadPage()
		if errors.Is(err, io.EOF) && row < s.Rows() {
			return fmt.Errorf("it ends at row %d of %d", row, s.Rows())
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("row %d: %w", row, err)
		}
		for in := page.Values(); ; {
			n, err := in.ReadValues(values)
			for _, v := range values[:n] {
				if row == s.Rows() {
					return fmt.Errorf("it has more than %d rows", row)
				}
				if err := s.set(row, place, v, number); err != nil {
					return err
				}
				row++
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("row %d: %w", row, err)
			}
		}
		parquet.Release(page)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// set stores the number of a value.
func (s *Series) set(row, column int, v parquet.Value, number func(parquet.Value) float64) error {
	if v.IsNull() {
		return fmt.Errorf("row %d is empty: leave out such rows, or fill them", row)
	}
	x := number(v)
	if x-x != 0 {
		return fmt.Errorf("row %d is %v: leave out such rows, or fill them", row, x)
	}
	s.Row(row)[column] = x
	return nil
}

// numberOf returns what makes a number of a column's values.
func numberOf(c *parquet.Column) (func(parquet.Value) float64, error) {
	wrong := func(kind any) error {
		return fmt.Errorf("it has values of type %v, and numbers are needed: convert it, or leave "+
			"it out", kind)
	}
	if !c.Leaf() || c.Repeated() {
		return nil, wrong("LIST, MAP or STRUCT")
	}
	signed := true
	if logical := c.Type().LogicalType(); logical != nil {
		integer, is := logical.Value.(*format.IntType)
		if !is {
			return nil, wrong(logical)
		}
		signed = integer.IsSigned
	}
	switch c.Type().Kind() {
	case parquet.Boolean:
		return func(v parquet.Value) float64 {
			if v.Boolean() {
				return 1
			}
			return 0
		}, nil
	case parquet.Int32:
		if !signed {
			return func(v parquet.Value) float64 { return float64(v.Uint32()) }, nil
		}
		return func(v parquet.Value) float64 { return float64(v.Int32()) }, nil
	case parquet.Int64:
		if !signed {
			return func(v parquet.Value) float64 { return float64(v.Uint64()) }, nil
		}
		return func(v parquet.Value) float64 { return float64(v.Int64()) }, nil
	case parquet.Float:
		return func(v parquet.Value) float64 { return float64(v.Float()) }, nil
	case parquet.Double:
		return parquet.Value.Double, nil
	}
	return nil, wrong(c.Type().Kind())
}
