// Command compare trains the same language models with Rondo and with PyTorch, by turns on the same
// cores, and prints how many tokens a second each trains on.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	var c config
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "bench/peers/.venv/bin/python"
	}
	flag.StringVar(&c.Rondo, "rondo", "bin/rondo", "the program to run")
	flag.StringVar(&c.Python, "python", python,
		"an interpreter with torch (bench/peers/setup.sh makes one); default: $PYTHON if set")
	flag.StringVar(&c.Script, "script", "bench/peers/torch_lm.py", "PyTorch's side")
	flag.StringVar(&c.Cells, "cells", "lstm,gru,rnn", "cells to compare")
	flag.StringVar(&c.Peers, "peers", "float32;bfloat16",
		"settings of PyTorch to try, by ;: float32 or bfloat16, with +compile if wanted")
	flag.StringVar(&c.Cores, "cores", "0", "cores that each side may use, as taskset has them")
	flag.IntVar(&c.Threads, "threads", 1, "threads of each side")
	flag.IntVar(&c.Hidden, "hidden", 256, "hidden units per layer")
	flag.IntVar(&c.Layers, "layers", 1, "recurrent layers")
	flag.IntVar(&c.Batch, "batch", 32, "sequences in a batch")
	flag.IntVar(&c.BPTT, "bptt", 35, "tokens of a segment")
	flag.IntVar(&c.Steps, "steps", 1000, "steps of Rondo's job")
	flag.IntVar(&c.Rounds, "rounds", 5, "turns of each side; the medians are compared")
	flag.Float64Var(&c.AtLeast, "at-least", 0, "fail if a ratio is below this")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, c, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}
