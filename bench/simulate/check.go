package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"rondo/allreduce"
	"rondo/bench"
	"rondo/bench/busbw"
	"rondo/bench/internal/hosts"
	"rondo/bench/predict"
	"rondo/internal/netns"
)

// fitted is the ring whose times the model's constants are fitted to.
const fitted = 2

type config struct {
	Rondo                string
	Worlds, Rates, Sizes []int
	Window               time.Duration
	AtMost               float64
}

func numbers(name, text string) ([]int, error) {
	var all []int
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %q is not a number", name, text, word)
		}
		all = append(all, n)
	}
	return all, nil
}

// validate names the flag that is wrong. Values that are passed on are checked by the ranks.
func (c config) validate() error {
	for _, world := range c.Worlds {
		if world <= fitted || world > busbw.MaxWorld {
			return fmt.Errorf("-worlds %d: must be %d to %d; %d are what is fitted", world,
				fitted+1, busbw.MaxWorld, fitted)
		}
	}
	for _, rate := range c.Rates {
		if rate < 1 || rate > 100_000 {
			return fmt.Errorf("-rates %d: must be 1 to 100000 Mb/s", rate)
		}
	}
	if len(c.Sizes) < 2 {
		return fmt.Errorf("-sizes: at least two are needed, to tell latency from bandwidth")
	}
	return nil
}

// trial is a measured ring, and the model's prediction for it.
type trial struct {
	rate     int
	row      busbw.Row
	modelled float64 // ms
}

// off is the model's error, relative to the measurement.
func (t trial) off() float64 { return t.modelled/t.row.MS - 1 }

// run measures and prints everything, and fails if the median error is more than config.AtMost.
func run(ctx context.Context, c config, out, log io.Writer) error {
	var all []trial
	err := hosts.Run(slices.Max(c.Worlds), func(network []*netns.Host) error {
		for _, rate := range c.Rates {
			if err := hosts.Shape(network, rate); err != nil {
				return err
			}
			trials, err := c.atRate(ctx, network, rate, out, log)
			if err != nil {
				return err
			}
			all = append(all, trials...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.judge(all, out)
}

// judge prints the median of the errors' sizes, and fails if it is too large.
func (c config) judge(all []trial, out io.Writer) error {
	var off []float64
	for _, t := range all {
		off = append(off, math.Abs(t.off()))
	}
	median := bench.Median(off)
	fmt.Fprintf(out, "median error of %d rings: %.1f%%; largest: %.1f%%\n", len(off), 100*median,
		100*slices.Max(off))
	if c.AtMost > 0 && !(median <= c.AtMost) {
		return fmt.Errorf("the median error is %.1f%%, more than %.1f%%", 100*median, 100*c.AtMost)
	}
	return nil
}

// atRate fits the model at one rate and compares it with larger rings. The cost of reduction and
// messages is so small beside such links that the fit puts it into latency and bandwidth.
func (c config) atRate(
	ctx context.Context, network []*netns.Host, rate int, out, log io.Writer,
) ([]trial, error) {
	var measured []predict.Measured
	err := hosts.AllReduce(ctx, c.Rondo, network[:fitted], c.Sizes, c.Window, log,
		func(r busbw.Row) error {
			measured = append(measured, predict.Measured{World: r.World, Bytes: float64(r.Bytes),
				Seconds: r.MS / 1e3})
			return nil
		})
	if err != nil {
		return nil, err
	}
	link, err := predict.Fit(measured, 0, 0, allreduce.MaxChunkBytes)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "\n%d Mb/s; fitted to %d ranks: latency %.0f us, %.1f Mb/s\n%5s %10s %11s "+
		"%11s %8s\n", rate, fitted, 1e6*link.Alpha, 8e-6/link.Beta, "world", "bytes", "measured ms",
		"model ms", "error")
	var trials []trial
	show := func(r busbw.Row) error {
		t := trial{rate, r, 1e3 * predict.AllReduce(r.World, float64(r.Bytes),
			allreduce.MaxChunkBytes, link, 0)}
		trials = append(trials, t)
		_, err := fmt.Fprintf(out, "%5d %10d %11.3f %11.3f %+7.1f%%\n", r.World, r.Bytes, r.MS,
			t.modelled, 100*t.off())
		return err
	}
	for _, world := range c.Worlds {
		err := hosts.AllReduce(ctx, c.Rondo, network[:world], c.Sizes, c.Window, log, show)
		if err != nil {
			return nil, err
		}
	}
	return trials, nil
}
