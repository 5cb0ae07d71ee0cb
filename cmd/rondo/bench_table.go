package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"rondo/internal/bench"
)

// trainTable prints rows as they come.
type trainTable struct {
	out   io.Writer
	lines *json.Encoder // nil: a table for people
}

func newTrainTable(out io.Writer, asJSON bool) trainTable {
	t := trainTable{out: out}
	if asJSON {
		t.lines = json.NewEncoder(out)
	}
	return t
}

// begin prints which devices are to be measured, and the table's head.
func (t trainTable) begin(devices []string) error {
	if t.lines != nil {
		return nil // every row names its device
	}
	for _, name := range devices {
		if _, err := fmt.Fprintln(t.out, name); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(t.out, "%-16s %5s %2s %4s %4s %6s %5s %-9s %7s %10s %10s %8s %6s %7s "+
		"%10s %10s\n", "cell", "H", "L", "B", "T", "V", "E", "precision", "threads", "tokens/s",
		"best", "GFLOP/s", "peak", "of peak", "parameters", "memory")
	return err
}

func (t trainTable) add(r bench.TrainRow) error {
	if t.lines != nil {
		return t.lines.Encode(r)
	}
	_, err := fmt.Fprintf(t.out, "%-16s %5d %2d %4d %4d %6d %5d %-9s %7d %10s %10s %8.1f %6.0f "+
		"%6.1f%% %10s %10s\n", r.Cell, r.Hidden, r.Layers, r.Batch, r.BPTT, r.Vocab, r.Embed,
		r.Precision, r.Threads, thousands(r.TokensPerSecond), thousands(r.BestTokensPerSecond),
		r.GFLOPS, r.PeakGFLOPS, 100*r.OfPeak, megabytes(r.ParameterBytes), megabytes(r.PeakBytes))
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

// add prints the parts of a step, of which there is at least one.
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
	if _, err := fmt.Fprintf(t.out, "%s H %d, L %d, B %d, T %d, V %d, E %d, %s, %d threads, "+
		"peak %.0f GFLOP/s: %s\n%-28s %9s %6s %11s %8s %8s %8s %9s\n", c.Cell, c.Hidden, c.Layers,
		c.Batch, c.BPTT, c.Vocab, c.Embed, c.Precision, c.Threads, c.PeakGFLOPS, c.Device, "part",
		"ms", "share", "tokens/s", "GFLOP/s", "of peak", "GB/s", "y+=ax"); err != nil {
		return err
	}
	for _, r := range rows {
		if _, err := fmt.Fprintf(t.out, "%-28s %9.3f %5.1f%% %11s %8s %8s %8s %9s\n", r.Part,
			1e3*r.Seconds, 100*r.Share, thousands(r.TokensPerSecond), unlessZero("%.1f", r.GFLOPS),
			unlessZero("%.1f%%", 100*r.OfPeak), unlessZero("%.1f", r.GBPerSecond),
			unlessZero("%.1f", r.TriadGBPerSecond)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(t.out)
	return err
}

// unlessZero leaves a cell empty that means nothing.
func unlessZero(format string, v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf(format, v)
}

// thousands writes a rate as people read it: 101,234. None is empty.
func thousands(v float64) string {
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
