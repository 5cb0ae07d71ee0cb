package series

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
)

// parquetFile is a Parquet file of these rows.
func parquetFile[T any](t testing.TB, rows ...T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := parquet.Write(&b, rows); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type numbersRow struct {
	A float64 `parquet:"a"`
	B float32 `parquet:"b,snappy,dict"`
	C int64   `parquet:"c,delta"`
	D uint32  `parquet:"d,zstd"`
	E bool    `parquet:"e,gzip"`
	F *int32  `parquet:"f,optional"`
}

// manyNumbers are rows that take several pages, and the values that they stand for.
func manyNumbers() (rows []numbersRow, values []float64) {
	for i := range 5000 {
		f := int32(-i)
		rows = append(rows, numbersRow{0.1 * float64(i), float32(i % 7), int64(i) << 20,
			math.MaxUint32, i%2 == 1, &f})
		values = append(values, 0.1*float64(i), float64(i%7), float64(int64(i)<<20),
			math.MaxUint32, float64(i%2), float64(-i))
	}
	return rows, values
}

// All types of numbers, encodings and codecs, in a file, in groups of rows and in an archive.
func TestParquet(t *testing.T) {
	rows, values := manyNumbers()
	var groups bytes.Buffer
	w := parquet.NewGenericWriter[numbersRow](&groups, parquet.PageBufferSize(4096))
	for part := range slices.Chunk(rows, 1700) {
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	whole := parquetFile(t, rows...)
	for name, content := range map[string][]byte{"a.parquet": whole, "b.parquet": groups.Bytes(),
		"c.zip": zipped(string(whole), "c.parquet")} {
		s, err := Open(t.Context(), write(t, name, content), nil)
		if err != nil || strings.Join(s.Columns, "") != "abcdef" ||
			!slices.Equal(s.Values, values) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// testdata/pyarrow.parquet is by pyarrow 26, with snappy and dictionaries:
//
//	pyarrow.parquet.write_table(pyarrow.table({"sine": [0.5, -0.25, 1.5], "count": [1, 2, 3],
//	    "half": numpy.float32([1, 1, 2])}), "pyarrow.parquet")
func TestParquetOfArrow(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join("testdata", "pyarrow.parquet"), nil)
	if err != nil || strings.Join(s.Columns, " ") != "sine count half" ||
		!slices.Equal(s.Values, []float64{0.5, 1, 1, -0.25, 2, 1, 1.5, 3, 2}) {
		t.Errorf("%+v, %v", s, err)
	}
}

// Errors are one line with the file, the column and the row.
func TestParquetErrors(t *testing.T) {
	type optional struct {
		X *float64 `parquet:"x,optional"`
	}
	type text struct {
		X string `parquet:"x"`
	}
	type list struct {
		X []float64 `parquet:"x"`
	}
	type instant struct {
		X time.Time `parquet:"x"`
	}
	type number struct {
		X float64 `parquet:"x"`
	}
	one := 1.0
	whole := parquetFile(t, number{1}, number{2})
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"empty field": {parquetFile(t, optional{&one}, optional{}), `column "x": row 1 is empty`},
		"text":        {parquetFile(t, text{"a"}), `column "x": it has values of type STRING`},
		"list": {parquetFile(t, list{[]float64{1}}),
			`column "x": it has values of type LIST`},
		"time":       {parquetFile(t, instant{time.Now()}), `it has values of type TIMESTAMP`},
		"NaN":        {parquetFile(t, number{math.NaN()}), `column "x": row 0 is NaN`},
		"no row":     {parquetFile[number](t), "it has no row of numbers"},
		"no Parquet": {[]byte("x\n1\n"), "it is not a Parquet file"},
		"half":       {whole[:len(whole)/2], "it is not a Parquet file"},
	} {
		path := write(t, "a.parquet", c.file)
		_, err := Open(t.Context(), path, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever byte is damaged, a file is read or refused.
func TestDamagedParquet(t *testing.T) {
	rows, _ := manyNumbers()
	whole := parquetFile(t, rows[:10]...)
	for i := range whole {
		for _, b := range []byte{0x7f, ^whole[i]} {
			damaged := slices.Clone(whole)
			damaged[i] = b
			s := &Series{}
			if err := readParquet(t.Context(), bytes.NewReader(damaged), s); err == nil &&
				len(s.Values)%len(s.Columns) != 0 {
				t.Errorf("byte %d is %x: %d numbers of %d columns", i, b, len(s.Values),
					len(s.Columns))
			}
		}
	}
}

// A damaged file is a table of finite numbers, or an error; never a panic.
func FuzzParquet(f *testing.F) {
	rows, _ := manyNumbers()
	f.Add(parquetFile(f, rows[:20]...))
	if file, err := os.ReadFile(filepath.Join("testdata", "pyarrow.parquet")); err == nil {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		s := &Series{}
		if readParquet(t.Context(), bytes.NewReader(content), s) != nil {
			return
		}
		if len(s.Values)%len(s.Columns) != 0 ||
			slices.ContainsFunc(s.Values, func(v float64) bool { return v-v != 0 }) {
			t.Errorf("%d columns, %v", len(s.Columns), s.Values)
		}
	})
}
