package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"rondo/bench"
)

// trainTable prints rows as they come.
type trainTable struct {
	out     io.Writer
	lines   *json.Encoder // nil: a table for people
	columns []trainColumn
}

// trainColumn is a column; numbers are right-aligned.
type trainColumn struct {
	head  string
	width int // negative: left-aligned
	value func(r bench.TrainRow) string
}

func newTrainTable(out io.Writer, asJSON bool) *trainTable {
	t := &trainTable{out: out}
	if asJSON {
		t.lines = json.NewEncoder(out)
	}
	return t
}

// begin prints the devices to measure, and the table's head. Embedding and recomputation have a
// column if a shape has them.
func (t *trainTable) begin(devices []string, shapes []bench.Shape) error {
	if t.lines != nil {
		return nil // every row names its device
	}
	for _, name := range devices {
		if _, err := fmt.Fprintln(t.out, name); err != nil {
			return err
		}
	}
	number := func(head string, width int, value func(r bench.TrainRow) int) trainColumn {
		return trainColumn{head, width, func(r bench.TrainRow) string {
			return strconv.Itoa(value(r))
		}}
	}
	t.columns = []trainColumn{{"cell", -16, func(r bench.TrainRow) string { return r.Cell }},
		number("H", 4, func(r bench.TrainRow) int { return r.Hidden }),
		number("L", 2, func(r bench.TrainRow) int { return r.Layers }),
		number("B", 3, func(r bench.TrainRow) int { return r.Batch }),
		number("T", 3, func(r bench.TrainRow) int { return r.BPTT }),
		number("V", 5, func(r bench.TrainRow) int { return r.Vocab })}
	if slices.ContainsFunc(shapes, func(s bench.Shape) bool { return s.Embed > 0 }) {
		t.columns = append(t.columns,
			number("E", 4, func(r bench.TrainRow) int { return r.Embed }))
	}
	if slices.ContainsFunc(shapes, func(s bench.Shape) bool { return s.Recompute > 0 }) {
		t.columns = append(t.columns,
			number("recompute", 9, func(r bench.TrainRow) int { return r.Recompute }))
	}
	if slices.ContainsFunc(shapes, func(s bench.Shape) bool { return s.Adaptive != "" }) {
		t.columns = append(t.columns, trainColumn{"adaptive", 8,
			func(r bench.TrainRow) string { return r.Adaptive }})
	}
	t.columns = append(t.columns,
		trainColumn{"type", 4, func(r bench.TrainRow) string { return r.Precision }},
		trainColumn{"threads", 7, func(r bench.TrainRow) string {
			return unlessZero("%.0f", float64(r.Threads))
		}},
		trainColumn{"tokens/s", 9,
			func(r bench.TrainRow) string { return thousands(r.TokensPerSecond) }},
		trainColumn{"GFLOP/s of peak", 16, func(r bench.TrainRow) string {
			if r.Threads == 0 { // a GPU's peak is not measured
				return fmt.Sprintf("%.0f", r.GFLOPS)
			}
			return fmt.Sprintf("%.0f of %.0f %3.0f%%", r.GFLOPS, r.PeakGFLOPS, 100*r.OfPeak)
		}},
		trainColumn{"weights", 8,
			func(r bench.TrainRow) string { return megabytes(r.ParameterBytes) }},
		trainColumn{"memory", 9,
			func(r bench.TrainRow) string { return megabytes(r.PeakBytes) }})
	return t.print(func(c trainColumn) string { return c.head })
}

func (t *trainTable) add(r bench.TrainRow) error {
	if t.lines != nil {
		return t.lines.Encode(r)
	}
	return t.print(func(c trainColumn) string { return c.value(r) })
}

func (t *trainTable) print(value func(c trainColumn) string) error {
	fields := make([]string, len(t.columns))
	for i, c := range t.columns {
		fields[i] = fmt.Sprintf("%*s", c.width, value(c))
	}
	_, err := fmt.Fprintln(t.out, strings.Join(fields, " "))
	return err
}

// kernelTable prints the parts of one step after the other.
type kernelTable struct {
	out   io.Writer
	lines *json.Encoder // nil: a table for people
}

func newKernelTable(out io.Writer, asJSON bool) kernelTable {
	t := kernelTable{out: out}
	if asJSON {
		t.lines = json.NewEncoder(out)
	}
	return t
}

// add prints the parts of a step; there is at least one.
func (t kernelTable) add(rows []bench.KernelRow) error {
	if t.lines != nil {
		for _, r := range rows {
			if err := t.lines.Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	c := rows[0]
	threads := fmt.Sprintf("%d threads", c.Threads)
	if c.Threads == 1 {
		threads = "1 thread"
	}
	if _, err := fmt.Fprintf(t.out, "%s H %d, L %d, B %d, T %d, V %d, E %d, %s, %s, "+
		"peak %.0f GFLOP/s: %s\n%-28s %9s %6s %11s %8s %8s %8s  %s\n", c.Cell, c.Hidden, c.Layers,
		c.Batch, c.BPTT, c.Vocab, c.Embed, c.Precision, threads, c.PeakGFLOPS, c.Device, "part",
		"ms", "share", "tokens/s", "GFLOP/s", "of peak", "GB/s", "y += x"); err != nil {
		return err
	}
	for _, r := range rows {
		pass := unlessZero("%.1f", r.AddGBPerSecond)
		if r.InCache {
			pass += " (cache)"
		}
		line := fmt.Sprintf("%-28s %9s %6s %11s %8s %8s %8s  %s", r.Part,
			figure("%.3f", 1e3*r.Seconds), figure("%.1f%%", 100*r.Share),
			thousands(float64(r.TokensPerSecond)), figure("%.1f", r.GFLOPS),
			figure("%.1f%%", 100*r.OfPeak), unlessZero("%.1f", r.GBPerSecond), pass)
		if _, err := fmt.Fprintln(t.out, strings.TrimRight(line, " ")); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(t.out)
	return err
}

// figure writes a number: empty if it means nothing, n/a if it is below the noise.
func figure(format string, f bench.Figure) string {
	if !f.Known() {
		return "n/a"
	}
	return unlessZero(format, float64(f))
}

// unlessZero leaves zero empty.
func unlessZero(format string, v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf(format, v)
}

// thousands writes a rate with separators: 101,234. Zero is empty, and NaN is n/a.
func thousands(v float64) string {
	if math.IsNaN(v) {
		return "n/a"
	}
	if v == 0 {
		return ""
	}
	digits := strconv.FormatInt(int64(v+0.5), 10)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }
