// Command scaling measures weak scaling on links of a known rate. Workers are processes on hosts of
// their own, network namespaces; Rondo and PyTorch's DistributedDataParallel over Gloo train the
// same model on them by turns. What the same processes compute with nobody to sum with, and what
// the sum alone takes, are measured in the same run.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"rondo/bench/internal/hosts"
)

func main() {
	var c config
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "bench/peers/.venv/bin/python"
	}
	flag.StringVar(&c.Rondo, "rondo", "bin/rondo", "the program to run")
	flag.StringVar(&c.Python, "python", python,
		"an interpreter with torch (bench/peers/setup.sh makes one); default: $PYTHON if set; "+
			"empty: Rondo alone")
	flag.StringVar(&c.Script, "script", "bench/peers/torch_ddp.py", "PyTorch's side")
	flag.IntVar(&c.Workers, "workers", 4, "workers, a host each")
	flag.IntVar(&c.Rate, "rate", 1000, "Mb/s that a host sends")
	flag.StringVar(&c.Cell, "cell", "lstm", "rnn, gru or lstm")
	flag.IntVar(&c.Hidden, "hidden", 512, "width of a layer")
	flag.IntVar(&c.Layers, "layers", 1, "layers")
	flag.IntVar(&c.Batch, "batch", 32, "lanes of each worker")
	flag.IntVar(&c.BPTT, "bptt", 70, "tokens of a lane in a step")
	flag.IntVar(&c.Steps, "steps", 60, "steps of a turn")
	flag.IntVar(&c.Turns, "turns", 3, "how often everything is measured")
	more := flag.String("flags", "--clip-scope global", "more flags of `rondo train`")
	flag.Float64Var(&c.AtLeast, "at-least", 0, "fail if Rondo's efficiency is below this fraction "+
		"of min(1, compute/communication)")
	flag.Float64Var(&c.Ratio, "ratio", 0, "fail if Rondo is not so many times as fast as PyTorch")
	flag.Parse()
	c.Flags = strings.Fields(*more)
	err := c.validate()
	if err == nil && flag.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scaling:", err)
		os.Exit(2)
	}
	// Daemons end with the thread that started them, which must be there until the end.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var notes hosts.Notes
	if err := run(ctx, c, os.Stdout, &notes); err != nil {
		if ctx.Err() == nil && notes.String() != "" {
			fmt.Fprintf(os.Stderr, "the processes wrote, at the end:\n%s\n", notes.String())
		}
		fmt.Fprintln(os.Stderr, "scaling:", strings.TrimSpace(err.Error()))
		os.Exit(1)
	}
}
