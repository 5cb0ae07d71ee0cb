package compute

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write cells_gen.h anew")

// TestHeader holds the header of C and CUDA to the table. With -update it writes it.
func TestHeader(t *testing.T) {
	const file = "cpu/kernels/cells_gen.h"
	var want bytes.Buffer
	want.WriteString("// The table of cells of package compute for C and CUDA. " +
		"Made from cell.go by\n// go test ./compute -run TestHeader -update\n\n" +
		"#ifndef RONDO_CELLS_H\n#define RONDO_CELLS_H\n\n" +
		"// CELL(name, gates, states, kept, peepholes) of each, in the order of their numbers.\n" +
		"#define RONDO_CELLS(CELL)")
	for _, p := range table() {
		name := strings.ToUpper(strings.ReplaceAll(p.name, "-", "_"))
		fmt.Fprintf(&want, " \\\n    CELL(%s, %d, %d, %d, %d)", name, p.gates, p.states, p.kept,
			p.peepholes)
	}
	want.WriteString("\n\n// RNN is a cell's number, RNN_GATES its gates.\n" +
		"#define RONDO_CELL(name, gates, states, kept, peepholes) name,\n" +
		"#define RONDO_GATES(name, gates, states, kept, peepholes) name##_GATES = gates,\n" +
		"enum { RONDO_CELLS(RONDO_CELL) CELLS };\n" +
		"enum { RONDO_CELLS(RONDO_GATES) };\n\n#endif\n")
	if *update {
		if err := os.WriteFile(file, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not what the table gives (%v): run go test ./compute -update", file, err)
	}
}

// TestDocs wants every cell in the table of docs/training.md with the text that it has here, and
// every file that docs/adding-a-cell.md names to be there. With -update it writes the table.
func TestDocs(t *testing.T) {
	const file, head = "../docs/training.md", "| --- | --- | --- | --- | --- |\n"
	training, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rows bytes.Buffer
	for _, p := range table() {
		gates := fmt.Sprint(p.gates)
		if p.text.Gates != "" {
			gates += ": " + p.text.Gates
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %d | %s | %s |\n", p.name, gates, p.states,
			p.text.Equations, p.text.Source)
		if p.text.Equations == "" || p.text.Source == "" || p.gates > 1 &&
			len(strings.Split(p.text.Gates, ", ")) != p.gates {
			t.Errorf("%s lacks its gates' names, equations or source", p.name)
		}
	}
	before, after, _ := bytes.Cut(training, []byte(head+"| `rnn` "))
	_, after, found := bytes.Cut(after, []byte("\n\n"))
	want := slices.Concat(before, []byte(head), rows.Bytes(), []byte("\n"), after)
	if *update && found {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !bytes.Equal(training, want) {
		t.Errorf("%s lacks what the table gives: run go test ./compute -update", file)
	}
	adding, err := os.ReadFile("../docs/adding-a-cell.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:compute|model|docs)/[^` ]+)`").FindAllSubmatch(adding, -1)
	for _, file := range named {
		if _, err := os.Stat("../" + string(file[1])); err != nil {
			t.Errorf("docs/adding-a-cell.md: %v", err)
		}
	}
	if len(named) < 8 {
		t.Errorf("docs/adding-a-cell.md names %d files", len(named))
	}
}

// The names are those that parse, and nothing else does.
func TestNames(t *testing.T) {
	for _, cell := range Cells() {
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
	for _, name := range []string{"", "LSTM", "transformer", Cell(-1).String(),
		Cell(cellCount).String(), Precision(4).String()} {
		if got, err := ParseCell(name); err == nil {
			t.Errorf("%q is the cell %v", name, got)
		}
		if got, err := ParsePrecision(name); err == nil {
			t.Errorf("%q is the precision %v", name, got)
		}
	}
}
