package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"rondo/bench"
	"rondo/bench/busbw"
)

type config struct {
	Rank          []string // the program that is a rank of Rondo's ring
	Python        string
	Script        string
	Worlds, Sizes string // numbers by commas
	Link, Wire    string
	Seconds       float64
	AtLeast       float64 // 0: any ratio will do
}

// validate names the flag that is wrong. Values that are passed on are checked by the sides.
func (c config) validate() error {
	if c.Link == busbw.MemoryLink {
		return fmt.Errorf("-link %s: its ranks are goroutines of one process, and Gloo's are "+
			"processes; take tcp, unix or shm", c.Link)
	}
	return nil
}

// numbers reads a flag's numbers.
func numbers(flag, text string) ([]int, error) {
	var all []int
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(one)
		if err != nil {
			return nil, fmt.Errorf("-%s %s: %q is not a whole number", flag, text, one)
		}
		all = append(all, n)
	}
	return all, nil
}

// run lets the sides take turns on every world and size, prints a row for each, and fails if Rondo
// is not config.AtLeast times as fast as Gloo.
func run(ctx context.Context, c config, out, log io.Writer) error {
	worlds, err := numbers("worlds", c.Worlds)
	if err != nil {
		return err
	}
	sizes, err := numbers("sizes", c.Sizes)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "medians, by turns; busbw in GB/s, of float32; link %s, wire %s\n"+
		"%5s %10s %9s %9s %9s %8s %8s %8s %9s %9s %7s %7s\n", c.Link, c.Wire, "world", "bytes",
		"rondo ms", "gloo ms", "raw ms", "busbw", "gloo", "raw", "rondo p99", "gloo p99", "of raw",
		"of gloo")
	var slow []string
	for _, world := range worlds {
		err := c.measure(ctx, world, sizes, log, func(r busbw.Row, peer []busbw.Row) {
			glooMS := median(peer, func(r busbw.Row) float64 { return r.MS })
			ratio := glooMS / r.MS
			fmt.Fprintf(out,
				"%5d %10d %9.3f %9.3f %9.3f %8.3f %8.3f %8.3f %9.3f %9.3f %6.2fx %6.2fx\n",
				world, r.Bytes, r.MS, glooMS, r.RawMS, r.BusBW,
				median(peer, func(r busbw.Row) float64 { return r.BusBW }), r.RawBusBW, r.P99MS,
				median(peer, func(r busbw.Row) float64 { return r.P99MS }), r.OfRaw, ratio)
			if ratio < c.AtLeast {
				slow = append(slow, fmt.Sprintf("world %d, %d bytes %.2fx", world, r.Bytes, ratio))
			}
		})
		if err != nil {
			return err
		}
	}
	if len(slow) > 0 {
		return fmt.Errorf("below %.2fx of Gloo: %s", c.AtLeast, strings.Join(slow, "; "))
	}
	return nil
}

func median(rows []busbw.Row, of func(busbw.Row) float64) float64 {
	var values []float64
	for _, r := range rows {
		values = append(values, of(r))
	}
	return bench.Median(values)
}

// measure has the sides take turns on a world, and hands over a row for each size: Rondo's, and
// those of Gloo's turns between them.
func (c config) measure(
	ctx context.Context, world int, sizes []int, log io.Writer, each func(busbw.Row, []busbw.Row),
) (err error) {
	window := time.Duration(c.Seconds * float64(time.Second))
	ring := busbw.Config{World: world, Sizes: sizes, Link: c.Link, Wire: c.Wire, Window: window,
		Rank: func(int) []string { return c.Rank }, Log: log}
	if err := ring.Validate(); err != nil {
		return err
	}
	command := []string{c.Python, c.Script, "--ordered", "--world", strconv.Itoa(world),
		"--seconds", fmt.Sprint(c.Seconds / busbw.Turns)}
	peer, err := startGloo(ctx, command, log)
	if err == nil {
		defer func() { err = errors.Join(err, peer.end()) }()
		_, err = peer.measure(sizes[0]) // waits until the peer is ready
	}
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(command, " "), err)
	}
	var rows []busbw.Row
	ring.Between = func(_ context.Context, bytes int) error {
		row, err := peer.measure(bytes)
		rows = append(rows, row)
		return err
	}
	return busbw.Measure(ctx, ring, func(r busbw.Row) error {
		each(r, rows)
		rows = nil
		return nil
	})
}
