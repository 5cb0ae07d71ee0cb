package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"rondo/bench"
	"rondo/compute"
)

type config struct {
	Rondo, Python, Script string
	Cores                 string // core numbers by commas
	Modes                 string // of PyTorch: eager, compile, or both by a comma
	Only                  string // part of a shape's name; empty: all
	Precisions            string // by commas
	Quick                 bool   // the textbook's shapes and one large one, once
	Turns                 int    // of each side; 0: as the shape's plan has it
	Seconds               float64
	AtLeast               float64 // 0: any ratio will do
}

// A group is one measurement of PyTorch and the Rondo shapes compared with it: PyTorch has one GRU,
// Rondo two.
type group struct {
	peer   bench.Shape
	shapes []bench.Shape
	plan
}

// plan is the length of a group's measurement: turns of each side, and windows in a turn.
type plan struct {
	threads        []int
	turns, windows int
}

// groups returns the groups to measure: the textbook's shapes with every number of threads, and the
// large ones in one turn, because a step takes seconds. With Quick all have one turn, and of the
// large ones only the LSTM of hidden 1024 is measured, on all cores.
func (c config) groups() ([]group, error) {
	cores := strings.Split(c.Cores, ",")
	small := plan{turns: 2, windows: 3}
	for n := range cores {
		small.threads = append(small.threads, n+1)
	}
	large := plan{threads: small.threads, turns: 1, windows: 3}
	words := bench.Large()
	if c.Quick {
		small.turns = 1
		large.threads = large.threads[len(large.threads)-1:]
		words = slices.DeleteFunc(words, func(s bench.Shape) bool {
			return s.Cell != compute.LSTM || s.Hidden != 1024
		})
	}
	if c.Turns > 0 {
		small.turns, large.turns = c.Turns, c.Turns
	}
	var all []group
	add := func(shapes []bench.Shape, p plan) {
		for _, s := range shapes {
			if !strings.Contains(s.String(), c.Only) {
				continue
			}
			peer := s
			if s.Cell == compute.GRUResetBefore {
				peer.Cell = compute.GRU
			}
			at := slices.IndexFunc(all, func(g group) bool { return g.peer == peer })
			if at < 0 {
				all = append(all, group{peer: peer, shapes: []bench.Shape{s}, plan: p})
			} else {
				all[at].shapes = append(all[at].shapes, s)
			}
		}
	}
	add(bench.Textbook(), small)
	add(words, large)
	if len(all) == 0 {
		return nil, fmt.Errorf("-only: no shape has %q in its name", c.Only)
	}
	return all, nil
}

// A setting is a way to train a shape.
type setting struct {
	precision compute.Precision
	threads   int
	mode      string // of PyTorch; empty: Rondo
}

func (s setting) String() string {
	text := fmt.Sprintf("%v, threads %d", s.precision, s.threads)
	if s.mode != "" {
		text += ", " + s.mode
	}
	return text
}

// measured is the result of a setting: rates of windows, or the reason for having none.
type measured struct {
	setting
	windows []float64
	turns   []float64 // the median of each turn's windows
	failed  string
	note    string // further facts for people
}

// results are those of one side, in the order in which they came.
type results []measured

// add merges a turn's result with those of earlier turns.
func (r *results) add(m measured) {
	if len(m.windows) > 0 {
		m.turns = []float64{bench.Median(m.windows)}
	}
	at := slices.IndexFunc(*r, func(o measured) bool { return o.setting == m.setting })
	if at < 0 {
		*r = append(*r, m)
		return
	}
	old := &(*r)[at]
	old.windows = append(old.windows, m.windows...)
	old.turns = append(old.turns, m.turns...)
	if m.failed != "" {
		old.failed = m.failed
	}
	old.note = m.note
}

// best returns the setting of the highest median, of a precision; false if none worked.
func (r results) best(p compute.Precision) (measured, bool) {
	var best measured
	for _, m := range r {
		if m.precision == p && m.rate() > best.rate() {
			best = m
		}
	}
	return best, best.rate() > 0
}

// rate is the median over all windows, or 0 if the setting failed.
func (m measured) rate() float64 {
	if m.failed != "" || len(m.windows) == 0 {
		return 0
	}
	return bench.Median(m.windows)
}

// run gives both sides turns at every shape. It prints each setting's result, and then a row for
// each shape. It fails if Rondo's best setting is not config.AtLeast times as fast as PyTorch's
// best of the same precision.
func run(ctx context.Context, c config, out, log io.Writer) error {
	if err := c.validate(); err != nil {
		return err
	}
	groups, err := c.groups()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "cores %s; both sides with 1 to %d threads, PyTorch %s; tokens/s: medians "+
		"of windows of %v s, but at least a step, and the lowest and highest\n", c.Cores,
		len(strings.Split(c.Cores, ",")), c.Modes, c.Seconds)
	rows, err := c.rows(ctx, groups, out, log)
	if len(rows) > 0 {
		printRows(out, rows) // the rows before an error are complete
	}
	if err != nil {
		return err
	}
	return c.judge(rows)
}

// rows measures the groups, and returns those that are whole.
func (c config) rows(ctx context.Context, groups []group, out, log io.Writer) ([]row, error) {
	var rows []row
	for _, g := range groups {
		peer, own, err := c.measure(ctx, g, log)
		if err != nil {
			return rows, err
		}
		for i, s := range g.shapes {
			printDetails(out, s, own[i], peer)
			rows = append(rows, newRow(s, own[i], peer))
		}
	}
	return rows, nil
}

// judge names the rows that are below config.AtLeast.
func (c config) judge(rows []row) error {
	var slow []string
	for _, r := range rows {
		for _, p := range c.precisions() {
			if ratio := r.sides[p].ratio(); ratio < c.AtLeast {
				slow = append(slow, fmt.Sprintf("%v %v %.2fx", r.shape, p, ratio))
			}
		}
	}
	if len(slow) > 0 {
		return fmt.Errorf("below %.2fx of PyTorch's best: %s", c.AtLeast, strings.Join(slow, "; "))
	}
	return nil
}

func precisions() []compute.Precision {
	return []compute.Precision{compute.FP32, compute.BF16}
}

// precisions are those to measure.
func (c config) precisions() []compute.Precision {
	return slices.DeleteFunc(precisions(), func(p compute.Precision) bool {
		return !slices.Contains(strings.Split(c.Precisions, ","), p.String())
	})
}

func (c config) validate() error {
	for name := range strings.SplitSeq(c.Precisions, ",") {
		if name != compute.FP32.String() && name != compute.BF16.String() {
			return fmt.Errorf("-precisions: %q is not fp32 or bf16", name)
		}
	}
	if c.Turns < 0 || c.Turns > 100 {
		return errors.New("-turns: give 0 to 100")
	}
	if !(c.Seconds > 0 && c.Seconds <= 60) {
		return errors.New("-seconds: give more than 0, and 60 at most")
	}
	for core := range strings.SplitSeq(c.Cores, ",") {
		if n, err := strconv.Atoi(core); err != nil || n < 0 {
			return fmt.Errorf("-cores: %q is not the number of a core", core)
		}
	}
	for mode := range strings.SplitSeq(c.Modes, ",") {
		if mode != "eager" && mode != "compile" {
			return fmt.Errorf("-modes: %q is not eager or compile", mode)
		}
	}
	return nil
}

// measure has the sides take turns on a group. Results of Rondo are by shape.
func (c config) measure(ctx context.Context, g group, log io.Writer) (
	peer results, own []results, err error) {
	own = make([]results, len(g.shapes))
	for range g.turns {
		for _, threads := range g.threads {
			for i, s := range g.shapes {
				rows, err := c.runRondo(ctx, s, g.plan, threads, log)
				if err != nil {
					return nil, nil, err
				}
				for _, m := range rows {
					own[i].add(m)
				}
			}
			rows, err := c.runTorch(ctx, g.peer, g.plan, threads, log)
			if err != nil {
				return nil, nil, err
			}
			for _, m := range rows {
				peer.add(m)
			}
		}
	}
	return peer, own, nil
}
