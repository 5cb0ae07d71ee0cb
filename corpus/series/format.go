package series

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"rondo/corpus"
)

const (
	maxZipped      = 1 << 30 // bytes of an archive's file
	maxHeaderBytes = 1 << 16 // of a NumPy file
)

type parser func(ctx context.Context, r io.Reader, to *Series) error

// formats are the parsers, by the ends of files' names.
func formats() map[string]parser {
	return map[string]parser{".csv": readCSV, ".npy": readNumPy, ".parquet": readParquet}
}

func ends() []string { return slices.Sorted(maps.Keys(formats())) }

// parserOf chooses the parser by the end of the name.
func parserOf(source string) (parser, error) {
	end := corpus.Extension(source)
	if end == ".zip" {
		return unzip, nil
	}
	parse, known := formats()[end]
	if !known {
		return nil, &corpus.FormatError{Source: source, Reads: ends()}
	}
	return parse, nil
}

// readCSV reads lines of numbers. The first line has names if one of its fields is not a number.
func readCSV(ctx context.Context, r io.Reader, to *Series) error {
	in := csv.NewReader(r)
	in.ReuseRecord, in.FieldsPerRecord, in.TrimLeadingSpace = true, -1, true
	var row []float64
	last := 0 // line
	for first := true; ; first = false {
		fields, err := in.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		var wrong *csv.ParseError
		if errors.As(err, &wrong) {
			return fmt.Errorf("line %d: %w", wrong.Line, wrong.Err)
		}
		if err != nil {
			return err
		}
		line, _ := in.FieldPos(0)
		if !first && line > last+1 { // the reader passes over empty lines
			return fmt.Errorf("line %d is empty: leave it out", last+1)
		}
		last = line
		if first {
			names := fields
			if numbers(fields) {
				names = nil
			}
			if err := to.name(names, len(fields)); err != nil {
				return fmt.Errorf("line %d: %w", line, err)
			}
			if names != nil {
				continue
			}
		}
		if row, err = to.parse(row[:0], fields); err == nil {
			err = to.add(row)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

func numbers(fields []string) bool {
	for _, field := range fields {
		if _, err := strconv.ParseFloat(strings.TrimSpace(field), 64); err != nil {
			return false
		}
	}
	return true
}

// parse appends the numbers of a line.
func (s *Series) parse(row []float64, fields []string) ([]float64, error) {
	if len(fields) != len(s.Columns) {
		return nil, fmt.Errorf("it has %d columns, and the first line %d", len(fields),
			len(s.Columns))
	}
	for i, field := range fields {
		v, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
		if field == "" {
			return nil, fmt.Errorf("column %q is empty: leave out such rows, or fill them",
				s.Columns[i])
		}
		if err != nil {
			return nil, fmt.Errorf("column %q: %.40q is not a number: leave out the column",
				s.Columns[i], field)
		}
		row = append(row, v)
	}
	return row, nil
}

// readNumPy reads a .npy file of float32 or float64, [N] or [N, F], in C order (NEP 1).
func readNumPy(ctx context.Context, r io.Reader, to *Series) error {
	in := bufio.NewReader(r)
	size, rows, columns, err := numPyHeader(in)
	if err != nil {
		return err
	}
	if err := to.name(nil, columns); err != nil {
		return err
	}
	raw, row := make([]byte, size*columns), make([]float64, columns)
	for i := range rows {
		if _, err := io.ReadFull(in, raw); err != nil {
			return fmt.Errorf("row %d of %d: the file ends: %w", i, rows, err)
		}
		for c := range row {
			if size == 4 {
				row[c] = float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[4*c:])))
			} else {
				row[c] = math.Float64frombits(binary.LittleEndian.Uint64(raw[8*c:]))
			}
		}
		if err := to.add(row); err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// numPyHeader returns a number's bytes, and the shape.
func numPyHeader(in io.Reader) (size, rows, columns int, err error) {
	var start [10]byte // "\x93NUMPY", version, length of the header
	_, err = io.ReadFull(in, start[:])
	length := int(binary.LittleEndian.Uint16(start[8:]))
	if err == nil && start[6] > 1 { // from version 2 on the length has four bytes
		var more [2]byte
		_, err = io.ReadFull(in, more[:])
		length |= int(binary.LittleEndian.Uint16(more[:])) << 16
	}
	if err != nil || string(start[:6]) != "\x93NUMPY" || length > maxHeaderBytes {
		return 0, 0, 0, errors.New("it is not a NumPy file: write it with numpy.save")
	}
	header := make([]byte, length)
	if _, err := io.ReadFull(in, header); err != nil {
		return 0, 0, 0, fmt.Errorf("its header ends: %w", err)
	}
	find := func(pattern string) []string {
		return append(regexp.MustCompile(pattern).FindStringSubmatch(string(header)), "", "", "")
	}
	kind, order := find(`'descr': *'(..)(.)'`), find(`'fortran_order': *(True|False)`)
	shape := find(`'shape': *\((\d+), *(\d*)\)`)
	columns = 1
	if shape[2] != "" {
		columns, err = strconv.Atoi(shape[2])
	}
	if kind[1] != "<f" || kind[2] != "4" && kind[2] != "8" || order[1] != "False" || err != nil {
		err = errors.New("not float")
	}
	if err == nil {
		rows, err = strconv.Atoi(shape[1])
	}
	if err != nil {
		return 0, 0, 0, fmt.Errorf("its array is %.80q: save float32 or float64, [N] or [N, F], "+
			"in C order", strings.TrimSpace(string(header)))
	}
	size, err = strconv.Atoi(kind[2])
	if columns < 1 || columns > MaxColumns || rows > MaxValues/columns {
		err = fmt.Errorf("%d rows of %d columns are more than %d numbers, or than %d columns", rows,
			columns, MaxValues, MaxColumns)
	}
	return size, rows, columns, err
}

// unzip reads the one file of an archive that has one of the formats.
func unzip(ctx context.Context, r io.Reader, to *Series) error {
	return corpus.ReadZip(r, ends(), maxZipped, func(name string, content io.Reader) error {
		return formats()[corpus.Extension(name)](ctx, content, to)
	})
}
