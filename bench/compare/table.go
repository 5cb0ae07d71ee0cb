package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"rondo/bench"
	"rondo/compute"
)

// duel is both sides' best of one precision.
type duel struct {
	rondo, torch measured
}

// ratio is Rondo's rate by PyTorch's; 0 if one has none.
func (d duel) ratio() float64 {
	if d.torch.rate() == 0 {
		return 0
	}
	return d.rondo.rate() / d.torch.rate()
}

// row is the result of a shape.
type row struct {
	shape bench.Shape
	sides map[compute.Precision]duel
}

func newRow(s bench.Shape, own, peer results) row {
	r := row{shape: s, sides: map[compute.Precision]duel{}}
	for _, p := range precisions() {
		rondo, _ := own.best(p)
		torch, _ := peer.best(p)
		r.sides[p] = duel{rondo: rondo, torch: torch}
	}
	return r
}

// overall compares each side's best over all precisions.
func (r row) overall() duel {
	var best duel
	for _, d := range r.sides {
		if d.rondo.rate() > best.rondo.rate() {
			best.rondo = d.rondo
		}
		if d.torch.rate() > best.torch.rate() {
			best.torch = d.torch
		}
	}
	return best
}

// printDetails prints a line for each setting of both sides.
func printDetails(out io.Writer, s bench.Shape, own, peer results) {
	fmt.Fprintf(out, "\n%v\n", s)
	for _, side := range []struct {
		name string
		all  results
	}{{"rondo", own}, {"torch", peer}} {
		for _, m := range side.all {
			if m.rate() == 0 {
				fmt.Fprintf(out, "  %s %-27s skipped: %s\n", side.name, m.setting, m.failed)
				continue
			}
			fmt.Fprintf(out, "  %s %-27s %9.0f %9.0f %9.0f  %s\n", side.name, m.setting, m.rate(),
				slices.Min(m.windows), slices.Max(m.windows), m.note)
		}
	}
}

// printRows prints a table, in Markdown, of each side's best setting.
func printRows(out io.Writer, rows []row) {
	fmt.Fprintln(out, "\n| cell | H | L | B | T | V | Rondo fp32 | PyTorch float32 | ratio "+
		"| Rondo bf16 | PyTorch bfloat16 | ratio | best by best |")
	fmt.Fprintln(out, "|"+strings.Repeat(" --- |", 13))
	for _, r := range rows {
		s := r.shape
		fmt.Fprintf(out, "| %s | %d | %d | %d | %d | %d |", s.Cell.String(), s.Hidden, s.Layers,
			s.Batch, s.BPTT, s.Vocab)
		for _, p := range precisions() {
			d := r.sides[p]
			fmt.Fprintf(out, " %s | %s | %s |", cell(d.rondo), cell(d.torch), times(d))
		}
		fmt.Fprintf(out, " %s |\n", times(r.overall()))
	}
}

// cell is a rate and the setting that gave it.
func cell(m measured) string {
	if m.rate() == 0 {
		return "none"
	}
	text := fmt.Sprintf("%.0f (%d", m.rate(), m.threads)
	if m.mode == "compile" {
		text += ", compiled"
	}
	return text + ")"
}

// times is the ratio of the medians and, of several turns, the lowest and the highest ratio of one.
func times(d duel) string {
	if d.ratio() == 0 {
		return ""
	}
	text := fmt.Sprintf("%.2fx", d.ratio())
	turns := min(len(d.rondo.turns), len(d.torch.turns))
	if turns < 2 {
		return text
	}
	ratios := make([]float64, turns)
	for i := range ratios {
		ratios[i] = d.rondo.turns[i] / d.torch.turns[i]
	}
	return fmt.Sprintf("%s (%.2f to %.2f)", text, slices.Min(ratios), slices.Max(ratios))
}
