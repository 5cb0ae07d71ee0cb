package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"rondo/bench"
	"rondo/compute"
	"rondo/internal/app"
	"rondo/job"
)

func benchCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast this machine trains",
	}
	c.AddCommand(benchTrainCommand(), benchKernelsCommand(), benchAllReduceCommand(),
		benchAllReduceRankCommand(), benchSimulateCommand())
	return c
}

// flopsHelp explains GFLOP/s and the peak.
const flopsHelp = "GFLOP/s counts the products of a step, forward and backward: for each token\n" +
	"6 K H (H + D) in each layer (K: gates of the cell; D: width of the input, 0 for\n" +
	"one-hot) and 6 H V in the output layer (with --adaptive-softmax what it computes for\n" +
	"a token in the mean). The peak is the rate of the precision's product\n" +
	"instruction on registers, on as many threads: the highest in the run, before, during\n" +
	"and after the measurements."

func benchTrainCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "train",
		Short: "Measure whole training steps",
		Long: "Measures whole training steps (reading the batch, forward, backward, clipping,\n" +
			"SGD) on random tokens, like `rondo train` with one worker. Tokens per second are\n" +
			"the median of the windows; --json has all windows, and the best. Bytes are the\n" +
			"weights' and the most that training held.\n\n" + benchShapesHelp + "\n\n" +
			flopsHelp,
	}
	flags := addBenchFlags(c.Flags(), time.Second)
	windows := c.Flags().Int("windows", 3, "windows to measure")
	c.Flags().StringVar(&flags.device, "device", flags.device, "device to measure: cpu, cuda, "+
		"cuda:N, or auto: a GPU if there is one")
	c.Flags().IntSliceVar(&flags.lists.Recompute, "recompute", []int{0},
		"steps of a segment that hold activations at a time, and are recomputed for its "+
			"backward pass; 0: of all")
	c.Flags().StringVar(&flags.lists.Adaptive, "adaptive-softmax", "",
		"where the tails of an adaptive softmax begin, as 2000,10000; tokens then are as "+
			"frequent as words")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		w, err := flags.windows(*windows)
		if err != nil {
			return app.Usage(err)
		}
		table := newTrainTable(cmd.OutOrStdout(), flags.json)
		meter := bench.NewMeter(bench.LargestCache())
		return flags.each(cmd, table.begin, func(ctx context.Context, dev bench.Device,
			s bench.Shape) error {
			row, err := meter.Train(ctx, dev, s, w)
			if err != nil {
				return err
			}
			if row.Threads == 0 { // a GPU, whose peak is not measured
				row.PeakGFLOPS, row.OfPeak = 0, 0
			}
			return table.add(row)
		})
	}
	return c
}

func benchKernelsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "kernels",
		Short: "Measure the parts of a training step",
		Long: "Measures each part of a training step alone: the layers' recurrent product,\n" +
			"input product, weight gradient and gates, the output layer with its loss,\n" +
			"clipping, and the update beside a plain pass over as much memory (y += x). Times " +
			"are medians of\n" +
			"the fastest of several rounds. A layer's parts are found by comparing it, in each\n" +
			"round, with a layer of ReLU units, which has next to no gates and as many\n" +
			"recurrent weights, and with products of its sizes. Gates below the noise are\n" +
			"n/a.\n\n" +
			benchShapesHelp + "\n\n" + flopsHelp,
	}
	flags := addBenchFlags(c.Flags(), 300*time.Millisecond)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		w, err := flags.windows(1)
		if err != nil {
			return app.Usage(err)
		}
		table := newKernelTable(cmd.OutOrStdout(), flags.json)
		meter := bench.NewMeter(bench.LargestCache())
		// Every table of parts names its device.
		nothing := func([]string, []bench.Shape) error { return nil }
		return flags.each(cmd, nothing, func(ctx context.Context, dev bench.Device,
			s bench.Shape) error {
			rows, err := meter.Kernels(ctx, dev, s, w.Length)
			if err != nil {
				return err
			}
			return table.add(rows)
		})
	}
	return c
}

const benchShapesHelp = "Without shape flags it measures the textbook's models: hidden 256,\n" +
	"batch 32, 35 steps, 28 characters, one-hot. Shape flags replace them by all\n" +
	"combinations of their values."

// shapeFlags are the flags that set a shape.
func shapeFlags() []string {
	return []string{"cell", "hidden", "layers", "batch", "bptt", "vocab", "embed", "recompute",
		"adaptive-softmax"}
}

// benchFlags are the flags of both commands.
type benchFlags struct {
	set        *pflag.FlagSet
	cells      []string
	lists      bench.Lists
	device     string
	precisions []string
	threads    []int
	seconds    float64
	large      bool
	json       bool
}

func addBenchFlags(set *pflag.FlagSet, window time.Duration) *benchFlags {
	f := &benchFlags{set: set, device: "cpu", lists: bench.Lists{Recompute: []int{0}}}
	cores := []int{1}
	if n := runtime.GOMAXPROCS(0); n > 1 {
		cores = append(cores, n)
	}
	set.StringSliceVar(&f.cells, "cell", []string{"lstm"},
		"cells by commas: "+strings.Join(compute.CellNames(), "|"))
	set.IntSliceVar(&f.lists.Hidden, "hidden", []int{256}, "widths H of the hidden state, by "+
		"commas")
	set.IntSliceVar(&f.lists.Layers, "layers", []int{1}, "numbers of layers L, by commas")
	set.IntSliceVar(&f.lists.Batch, "batch", []int{32}, "lanes B, by commas")
	set.IntSliceVar(&f.lists.BPTT, "bptt", []int{35}, "tokens T of a segment, by commas")
	set.IntSliceVar(&f.lists.Vocab, "vocab", []int{28}, "tokens V of the vocabulary, by commas")
	set.IntSliceVar(&f.lists.Embed, "embed", []int{0}, "widths E of the embedding, by commas; 0: "+
		"one-hot")
	set.BoolVar(&f.large, "large", false, "add word models: hidden 512, 1024 (2 layers) and 2048, "+
		"batch 64, 64 steps, 10,000 words, embedding as wide as hidden")
	set.StringSliceVar(&f.precisions, "precision", []string{"fp32", "bf16"},
		"operands of products, by commas: fp32|bf16, and on a GPU tf32|fp16")
	set.IntSliceVar(&f.threads, "threads", cores,
		"CPU threads, by commas; 0: the cores that this process may use")
	set.Float64Var(&f.seconds, "seconds", window.Seconds(),
		"seconds of each measurement")
	set.BoolVar(&f.json, "json", false, "print one JSON object per row")
	return f
}

// settings are the devices with their settings, and their names.
func (f *benchFlags) settings() (all []bench.Setting, names []string, err error) {
	chosen, err := job.Choose(f.device)
	if err != nil {
		return nil, nil, err
	}
	device, threads, precisions := chosen.Of(0), f.threads, f.precisions
	if device != "cpu" {
		if f.set.Changed("threads") {
			return nil, nil, app.Usagef("--threads is for CPUs, and --device %s is a GPU: "+
				"leave it out", f.device)
		}
		if threads = []int{0}; !f.set.Changed("precision") {
			precisions = []string{"fp32", "tf32", "bf16", "fp16"}
		}
	}
	return bench.Settings(device, precisions, threads)
}

// windows are the number and length of measurements.
func (f *benchFlags) windows(count int) (bench.Windows, error) {
	const longest = float64(1 << 30) // seconds, so that no duration overflows
	if math.IsNaN(f.seconds) || math.Abs(f.seconds) > longest {
		return bench.Windows{}, fmt.Errorf("--seconds %v: must be more than 0, and no more than "+
			"an hour", f.seconds)
	}
	w := bench.Windows{Length: time.Duration(f.seconds * float64(time.Second)), Count: count}
	return w, w.Validate()
}

// shapes are the shapes to measure.
func (f *benchFlags) shapes() ([]bench.Shape, error) {
	var given []string
	for _, name := range shapeFlags() {
		if f.set.Changed(name) {
			given = append(given, "--"+name)
		}
	}
	if len(given) == 0 {
		all := bench.Textbook()
		if f.large {
			all = append(all, bench.Large()...)
		}
		return all, nil
	}
	if f.large {
		return nil, fmt.Errorf("--large adds its own shapes: leave out %s",
			strings.Join(given, ", "))
	}
	for _, name := range f.cells {
		cell, err := compute.ParseCell(name)
		if err != nil {
			return nil, fmt.Errorf("--cell %w", err)
		}
		f.lists.Cells = append(f.lists.Cells, cell)
	}
	return f.lists.Shapes()
}

// each opens a device for every shape and setting and measures it. It calls begin first, with the
// devices and shapes.
func (f *benchFlags) each(cmd *cobra.Command,
	begin func(devices []string, shapes []bench.Shape) error,
	measure func(context.Context, bench.Device, bench.Shape) error) error {
	ctx := cmd.Context()
	shapes, err := f.shapes()
	if err != nil {
		return app.Usage(err)
	}
	settings, names, err := f.settings()
	if err != nil {
		return err
	}
	if text := job.Crowded(slices.Max(f.threads), 1, runtime.GOMAXPROCS(0)); text != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "rondo:", text)
	}
	if err := begin(names, shapes); err != nil {
		return err
	}
	for _, s := range shapes {
		for _, c := range settings {
			if err := c.With(func(dev bench.Device) error {
				return measure(ctx, dev, s)
			}); ctx.Err() != nil {
				return errors.New("interrupted; the rows above are whole")
			} else if err != nil {
				return fmt.Errorf("%v, %v: %w", s, c, err)
			}
		}
	}
	return nil
}
