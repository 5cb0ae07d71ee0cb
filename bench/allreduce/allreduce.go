package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"rondo/bench/internal/side"
	"rondo/internal/bench"
	"rondo/internal/bench/busbw"
)

type config struct {
	Rondo, Python, Script string
	Worlds, Sizes         string // numbers by commas
	Link                  string
	Turns                 int
	Seconds               float64
	AtLeast               float64 // 0: any ratio will do
}

// validate names the flag that is wrong. What is passed on to the sides, they judge.
func (c config) validate() error {
	if c.Link == busbw.MemoryLink {
		return fmt.Errorf("-link %s: its ranks are goroutines of one process, and Gloo's are "+
			"processes; take tcp or shm", c.Link)
	}
	if c.Turns < 1 || c.Turns > 1000 {
		return fmt.Errorf("-turns %d: must be 1 to 1000", c.Turns)
	}
	return nil
}

// pair is what came of a world and a size: a row of each side's turns.
type pair struct {
	rondo, gloo []busbw.Row
}

// run lets the sides take turns on every world, prints a row for each size, and fails if Rondo is
// not config.AtLeast times as fast as Gloo.
func run(ctx context.Context, c config, out, log io.Writer) error {
	fmt.Fprintf(out, "medians of %d turns, by turns; busbw in GB/s; link %s\n"+
		"%5s %10s %9s %9s %8s %8s %8s %11s %12s %8s\n", c.Turns, c.Link, "world", "bytes",
		"rondo ms", "gloo ms", "busbw", "gloo", "raw ring", "rondo p99", "gloo p99", "ratio")
	var slow []string
	for world := range strings.SplitSeq(c.Worlds, ",") {
		pairs, err := c.measure(ctx, world, log)
		if err != nil {
			return err
		}
		for _, p := range pairs {
			r := p.rondo[0]
			ratio := p.ratio()
			fmt.Fprintf(out, "%5d %10d %9.3f %9.3f %8.3f %8.3f %8.3f %11.3f %12.3f %7.2fx\n",
				r.World, r.Bytes, median(p.rondo, ms), median(p.gloo, ms), median(p.rondo, rate),
				median(p.gloo, rate), median(p.rondo, func(r busbw.Row) float64 {
					return r.RawBusBW
				}), median(p.rondo, p99), median(p.gloo, p99), ratio)
			if ratio < c.AtLeast {
				slow = append(slow, fmt.Sprintf("world %d, %d bytes %.2fx", r.World, r.Bytes,
					ratio))
			}
		}
	}
	if len(slow) > 0 {
		return fmt.Errorf("below %.2fx of Gloo: %s", c.AtLeast, strings.Join(slow, "; "))
	}
	return nil
}

func ms(r busbw.Row) float64   { return r.MS }
func p99(r busbw.Row) float64  { return r.P99MS }
func rate(r busbw.Row) float64 { return r.BusBW }

// ratio is how many times as fast as Gloo Rondo is.
func (p pair) ratio() float64 { return median(p.gloo, ms) / median(p.rondo, ms) }

func median(rows []busbw.Row, of func(busbw.Row) float64) float64 {
	var values []float64
	for _, r := range rows {
		values = append(values, of(r))
	}
	return bench.Median(values)
}

// measure has the sides take turns on a world, and returns a pair for each size.
func (c config) measure(ctx context.Context, world string, log io.Writer) ([]pair, error) {
	flags := []string{"--world", world, "--sizes", c.Sizes, "--seconds", fmt.Sprint(c.Seconds)}
	pairs := make([]pair, strings.Count(c.Sizes, ",")+1)
	rondo := append([]string{c.Rondo, "bench", "allreduce", "--json", "--link", c.Link}, flags...)
	gloo := append([]string{c.Python, c.Script}, flags...)
	for range c.Turns {
		own, err := rows(ctx, rondo, len(pairs), log)
		if err != nil {
			return nil, err
		}
		peer, err := rows(ctx, gloo, len(pairs), log)
		if err != nil {
			return nil, err
		}
		for i := range pairs {
			if own[i].World != peer[i].World || own[i].Bytes != peer[i].Bytes {
				return nil, fmt.Errorf("row %d: Rondo has %d bytes on %d ranks, Gloo %d on %d",
					i+1, own[i].Bytes, own[i].World, peer[i].Bytes, peer[i].World)
			}
			pairs[i].rondo = append(pairs[i].rondo, own[i])
			pairs[i].gloo = append(pairs[i].gloo, peer[i])
		}
	}
	return pairs, nil
}

// rows runs a side, which must print so many rows with a time each.
func rows(ctx context.Context, command []string, want int, log io.Writer) ([]busbw.Row, error) {
	rows, err := side.Run[busbw.Row](ctx, command, log)
	if err == nil && len(rows) != want {
		err = fmt.Errorf("it printed %d rows, want %d", len(rows), want)
	}
	for _, r := range rows {
		if err == nil && !(r.MS > 0) {
			err = fmt.Errorf("a row without a time: %+v", r)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	return rows, nil
}
