package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"rondo/bench"
	"rondo/bench/busbw"
	"rondo/bench/internal/command"
	"rondo/bench/internal/hosts"
	"rondo/compute"
	"rondo/internal/netns"
)

type config struct {
	Rondo, Python, Script       string
	Workers, Rate               int
	Cell                        string
	Hidden, Layers, Batch, BPTT int
	Steps, Turns                int
	Cores                       string // core numbers by commas; empty: nobody is pinned
	Half                        bool   // a row of 16 bits on the wire
	Flags                       []string
	AtLeast, Ratio              float64 // 0: anything will do
}

// flags defines the flags; those of `rondo train` come as one text.
func (c *config) flags() (more *string) {
	flag.StringVar(&c.Rondo, "rondo", "bin/rondo", "the program to run")
	command.Python(&c.Python)
	flag.Lookup("python").Usage += "; empty: Rondo alone"
	flag.StringVar(&c.Script, "script", "bench/peers/torch_ddp.py", "PyTorch's side")
	flag.IntVar(&c.Workers, "workers", 4, "workers, a host each")
	flag.IntVar(&c.Rate, "rate", 1000, "Mb/s that a host sends")
	flag.StringVar(&c.Cell, "cell", "lstm", "rnn, gru or lstm")
	flag.IntVar(&c.Hidden, "hidden", 256, "width of a layer")
	flag.IntVar(&c.Layers, "layers", 1, "layers")
	flag.IntVar(&c.Batch, "batch", 128, "lanes of each worker")
	flag.IntVar(&c.BPTT, "bptt", 70, "tokens of a lane in a step")
	flag.IntVar(&c.Steps, "steps", 30, "steps of a turn")
	flag.IntVar(&c.Turns, "turns", 3, "how often everything is measured")
	flag.StringVar(&c.Cores, "cores", "", "cores, by commas, of which each worker stays on one; "+
		"empty: the system moves them about")
	flag.BoolVar(&c.Half, "bf16", true, "measure --wire bf16 too")
	flag.Float64Var(&c.AtLeast, "at-least", 0, "fail if Rondo's efficiency is below this fraction "+
		"of min(1, compute/communication)")
	flag.Float64Var(&c.Ratio, "ratio", 0, "fail if Rondo is not so many times as fast as PyTorch")
	return flag.String("flags", "--clip-scope global", "more flags of `rondo train`")
}

// vocabulary is the letters, a space, and the token for unknown characters.
const vocabulary = 28

// validate names the flag that is wrong. Values that are passed on are checked by the sides.
func (c config) validate() error {
	for _, check := range []struct {
		flag            string
		value, from, to int
	}{
		{"-workers", c.Workers, 2, busbw.MaxWorld},
		{"-rate", c.Rate, 1, 100_000},
		{"-hidden", c.Hidden, 1, 1 << 14},
		{"-layers", c.Layers, 1, 16},
		{"-batch", c.Batch, 1, 1 << 14},
		{"-bptt", c.BPTT, 1, 1 << 14},
		{"-steps", c.Steps, 10, 1 << 20},
		{"-turns", c.Turns, 1, 1000},
	} {
		if check.value < check.from || check.value > check.to {
			return fmt.Errorf("%s %d: must be %d to %d", check.flag, check.value, check.from,
				check.to)
		}
	}
	for core := range strings.SplitSeq(c.Cores, ",") {
		if _, err := strconv.ParseUint(core, 10, 16); err != nil && c.Cores != "" {
			return fmt.Errorf("-cores: %q is not the number of a core", core)
		}
	}
	switch c.Cell {
	case "rnn", "gru", "lstm": // which PyTorch has
	default:
		return fmt.Errorf("-cell %q: must be rnn, gru or lstm", c.Cell)
	}
	if c.Python == "" && c.Ratio > 0 {
		return fmt.Errorf("-ratio %v: there is nothing to compare with without -python", c.Ratio)
	}
	return nil
}

// bytes of the gradient: float32, with PyTorch's two biases for each gate.
func (c config) bytes() int {
	cell, _ := compute.ParseCell(c.Cell) // validate knows it
	width, n := vocabulary, 0
	for range c.Layers {
		n += cell.Gates() * c.Hidden * (width + c.Hidden + 2)
		width = c.Hidden
	}
	return 4 * (n + vocabulary*(c.Hidden+1))
}

// tokens of a step, of all workers.
func (c config) tokens() float64 { return float64(c.Workers * c.Batch * c.BPTT) }

// result is one side's seconds of a step, one value for each turn.
type result struct {
	name           string
	compute, steps []float64
}

// run measures everything by turns and prints it, and fails if less came of it than was asked for.
func run(ctx context.Context, c config, out, log io.Writer) error {
	var sums []float64 // seconds of the sum alone
	rondo, half := &result{name: "rondo"}, &result{name: "rondo, bf16 wire"}
	torch := &result{name: "torch ddp"}
	// One host more has etcd and the command that shows the job.
	err := hosts.Run(c.Workers+1, func(all []*netns.Host) error {
		if err := hosts.Shape(all, c.Rate); err != nil {
			return err
		}
		workers, lead := all[:c.Workers], all[c.Workers]
		for range c.Turns {
			const window = 2 * time.Second
			err := hosts.AllReduce(ctx, c.Rondo, workers, []int{c.bytes()}, window, log,
				func(r busbw.Row) error {
					sums = append(sums, r.MS/1e3)
					return nil
				})
			if err != nil {
				return err
			}
			if err := c.turn(rondo, func(alone bool) (float64, error) {
				if alone {
					return c.rondoAlone(ctx, workers, log)
				}
				return c.rondoTogether(ctx, workers, lead, log)
			}); err != nil {
				return err
			}
			if c.Half {
				step, err := c.rondoTogether(ctx, workers, lead, log, "--wire", "bf16")
				if err != nil {
					return fmt.Errorf("%s: %w", half.name, err)
				}
				half.steps = append(half.steps, step)
			}
			if c.Python == "" {
				continue
			}
			if err := c.turn(torch, func(alone bool) (float64, error) {
				return c.torch(ctx, workers, alone, log)
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	half.compute = rondo.compute
	return c.report(bench.Median(sums), rondo, half, torch, out)
}

// turn measures a side's steps, alone and together.
func (c config) turn(s *result, step func(alone bool) (float64, error)) error {
	compute, err := step(true)
	if err != nil {
		return fmt.Errorf("%s, each alone: %w", s.name, err)
	}
	together, err := step(false)
	if err != nil {
		return fmt.Errorf("%s, together: %w", s.name, err)
	}
	s.compute, s.steps = append(s.compute, compute), append(s.steps, together)
	return nil
}

// wire is how many seconds the bytes of a sum take at the links' rate.
func (c config) wire() float64 {
	return 2 * float64(c.Workers-1) / float64(c.Workers) * float64(8*c.bytes()) /
		(1e6 * float64(c.Rate))
}

// ratios divides values of the same turn, so that a machine that is slower for a while slows both
// sides.
func ratios(over, under []float64) []float64 {
	all := make([]float64, len(over))
	for i := range all {
		all[i] = over[i] / under[i]
	}
	return all
}

// spread is the lowest and the highest of the turns'.
func spread(values []float64) string {
	return fmt.Sprintf("%.3f-%.3f", slices.Min(values), slices.Max(values))
}

// report prints the table and judges it: rondo alone, and against torch. All are held against the
// sum of float32, half too, whose numbers travel in 16 bits.
func (c config) report(sum float64, rondo, half, torch *result, out io.Writer) error {
	cores := "each on one of the cores " + c.Cores
	if c.Cores == "" {
		cores = "on no cores of their own"
	}
	fmt.Fprintf(out, "%d workers, %d Mb/s, %s; %s, %d layers of %d, vocabulary %d; batch %d a "+
		"worker, bptt %d; fp32, 1 thread each\ngradient of %d bytes; the sum alone takes %.1f ms, "+
		"of which %.1f are the links'; medians of %d turns of %d steps\n\n"+
		"%-16s %11s %9s %10s %11s %13s %16s %9s\n",
		c.Workers, c.Rate, cores, c.Cell, c.Layers, c.Hidden, vocabulary, c.Batch, c.BPTT,
		c.bytes(), 1e3*sum, 1e3*c.wire(), c.Turns, c.Steps, "", "compute ms", "step ms",
		"tokens/s", "efficiency", "of turns", "compute/sum <=1", "of that")
	var failed []string
	show := func(s *result) (ofBound float64) {
		compute, step := bench.Median(s.compute), bench.Median(s.steps)
		turns := ratios(s.compute, s.steps)
		efficiency, bound := bench.Median(turns), min(1, compute/sum)
		fmt.Fprintf(out, "%-16s %11.1f %9.1f %10.0f %11.3f %13s %16.3f %9.3f\n", s.name,
			1e3*compute, 1e3*step, c.tokens()/step, efficiency, spread(turns), bound,
			efficiency/bound)
		return efficiency / bound
	}
	if ofBound := show(rondo); ofBound < c.AtLeast {
		failed = append(failed, fmt.Sprintf("the efficiency is %.3f of min(1, compute/sum), less "+
			"than %.3f", ofBound, c.AtLeast))
	}
	if len(half.steps) > 0 {
		show(half)
	}
	if len(torch.steps) > 0 {
		show(torch)
		turns := ratios(torch.steps, rondo.steps)
		ratio := bench.Median(turns)
		fmt.Fprintf(out, "rondo is %.2fx as fast as torch ddp (%s)\n", ratio, spread(turns))
		if ratio < c.Ratio {
			failed = append(failed, fmt.Sprintf("%.2fx of torch ddp, less than %.2fx", ratio,
				c.Ratio))
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%s", strings.Join(failed, "; "))
	}
	return nil
}
