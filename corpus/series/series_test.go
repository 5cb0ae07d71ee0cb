package series

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// numPy is a .npy file as numpy.save writes it.
func numPy(descr, shape string, values any) []byte {
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape)
	header += strings.Repeat(" ", 64-(10+len(header)+1)%64) + "\n"
	b := append([]byte("\x93NUMPY\x01\x00"), byte(len(header)), byte(len(header)>>8))
	b, err := binary.Append(append(b, header...), binary.LittleEndian, values)
	if err != nil {
		panic(err)
	}
	return b
}

// zipped is an archive of files with this content.
func zipped(content string, names ...string) []byte {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, name := range names {
		f, err := w.Create(name)
		if err == nil {
			_, err = f.Write([]byte(content))
		}
		if err != nil {
			panic(err)
		}
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func TestOpen(t *testing.T) {
	for name, c := range map[string]struct {
		file    string
		content []byte
		columns []string
		values  []float64
	}{
		"names": {"a.csv", []byte("x, \"y,z\"\n1,2\n-3e1, .5\n"), []string{"x", "y,z"},
			[]float64{1, 2, -30, 0.5}},
		"numbers": {"a.csv", []byte("1\n2\n\n"), []string{"1"}, []float64{1, 2}},
		"windows": {"A.CSV", []byte("x\r\n1\r\n2\r\n"), []string{"x"}, []float64{1, 2}},
		"float32": {"a.npy", numPy("<f4", "(2,)", []float32{1.5, 2}), []string{"1"},
			[]float64{1.5, 2}},
		"float64": {"a.npy", numPy("<f8", "(2, 2)", []float64{1, 2, 3, 0.1}), []string{"1", "2"},
			[]float64{1, 2, 3, 0.1}},
		"zip": {"a.zip", zipped("x\n7\n", "readme.txt", "in/b.csv"), []string{"x"}, []float64{7}},
	} {
		s, err := Open(t.Context(), write(t, c.file, c.content), nil)
		if err != nil || !slices.Equal(s.Columns, c.columns) || !slices.Equal(s.Values, c.values) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

// Errors are one line with the file, and the line or row.
func TestOpenErrors(t *testing.T) {
	for name, c := range map[string]struct {
		file, content, want string
	}{
		"columns":    {"a.csv", "x,y\n1,2\n3\n", "line 3: it has 1 columns, and the first line 2"},
		"word":       {"a.csv", "x\n1\nabc\n", `line 3: column "x": "abc" is not a number`},
		"empty":      {"a.csv", "x,y\n1,\n", `line 2: column "y" is empty`},
		"empty line": {"a.csv", "x\n1\n\n2\n", "line 3 is empty"},
		"NaN":        {"a.csv", "x\n1\nnan\n", `line 3: column "x" is NaN`},
		"infinity":   {"a.csv", "1\n-inf\n", `line 2: column "1" is -Inf`},
		"quote":      {"a.csv", "x\n\"1\n", "line 2: "},
		"no row":     {"a.csv", "x\n", "it has no row of numbers"},
		"no file":    {"a.csv", "", "it has no row of numbers"},
		"same name":  {"a.csv", "x,x\n1,2\n", `line 1: column 2 is named "x"`},
		"no name":    {"a.csv", "x,\n1,2\n", `line 1: column 2 is named ""`},
		"format":     {"a.txt", "1\n", "reads .csv, .npy, .parquet, or a .zip with one such file"},
		"not NumPy":  {"a.npy", "1\n2\n3\n4\n5\n6\n", "it is not a NumPy file"},
		"integers": {"a.npy", string(numPy("<i8", "(1,)", []int64{1})),
			"save float32 or float64"},
		"cut": {"a.npy", string(numPy("<f8", "(2,)", []float64{1})),
			"row 1 of 2: the file ends"},
		"NumPy NaN": {"a.npy", string(numPy("<f8", "(2,)", []float64{1, math.NaN()})),
			`row 1: column "1" is NaN`},
		"huge":     {"a.npy", string(numPy("<f4", "(9999999999, 2)", []float32{})), "more than"},
		"two":      {"a.zip", string(zipped("1\n", "a.csv", "b.csv")), "has 2 files"},
		"in a zip": {"a.zip", string(zipped("1\nx\n", "a.csv")), `"a.csv": line 2: `},
		"no zip":   {"a.zip", "1\n", "give a zip archive"},
	} {
		path := write(t, c.file, []byte(c.content))
		_, err := Open(t.Context(), path, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestScale(t *testing.T) {
	s := &Series{Columns: []string{"a", "b"}, Values: []float64{1, 5, 3, 5, 100, 6}}
	c := s.Measure(2)
	if !slices.Equal(c.Mean, []float64{2, 5}) || !slices.Equal(c.Std, []float64{1, 1}) {
		t.Errorf("%+v", c)
	}
	if got := c.Standard(nil, s, []int{1, 0}); !slices.Equal(got, []float32{0, -1, 0, 1, 1, 98}) {
		t.Error(got)
	}
	if s.Fingerprint() == (&Series{Columns: s.Columns, Values: s.Values[:4]}).Fingerprint() {
		t.Error("two series have one fingerprint")
	}
}

func TestSelect(t *testing.T) {
	columns := []string{"a", "b", "c"}
	for names, want := range map[string]string{"": "[0 1 2]", "c, a": "[2 0]", "d": "", "a,a": ""} {
		got, err := Select(columns, names)
		if fmt.Sprint(got) != want && (want != "" || err == nil) {
			t.Errorf("%q: %v, %v", names, got, err)
		}
	}
}

// Whatever the bytes, a file is a table of finite numbers, or an error.
func FuzzOpen(f *testing.F) {
	for _, content := range []string{"x,y\n1,2\n", "1\n\n2", string(numPy("<f4", "(2,)",
		[]float32{1, 2})), string(numPy("<f8", "(1, 2)", []float64{1, 2}))} {
		f.Add([]byte(content))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, parse := range []parser{readCSV, readNumPy, unzip} {
			s := &Series{}
			if parse(t.Context(), bytes.NewReader(content), s) != nil {
				continue
			}
			if len(s.Values) > 0 && len(s.Values)%len(s.Columns) != 0 ||
				slices.ContainsFunc(s.Values, func(v float64) bool { return v-v != 0 }) {
				t.Errorf("%d columns, %v", len(s.Columns), s.Values)
			}
		}
	})
}
