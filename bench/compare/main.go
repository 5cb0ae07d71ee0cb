// Command compare trains the same language models with Rondo (`rondo bench train`) and with PyTorch
// (bench/peers/torch_lm.py), by turns on the same cores, and prints how many tokens a second each
// trains on: in float32 and in bfloat16, on one core and on all, PyTorch also compiled.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
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
	flag.StringVar(&c.Cores, "cores", "0,1",
		"cores to use, by commas; n threads have the first n of them")
	flag.StringVar(&c.Modes, "modes", "eager,compile",
		"how PyTorch runs: eager, compile (which needs a C++ compiler), or both by a comma")
	flag.StringVar(&c.Only, "only", "",
		"measure only shapes whose name contains this, as \"H256\" or \"gru H1024 L2\"")
	flag.BoolVar(&c.Quick, "quick", false, "measure only the textbook's shapes, in one turn")
	flag.Float64Var(&c.Seconds, "seconds", 0.5, "length of a window")
	flag.Float64Var(&c.AtLeast, "at-least", 0,
		"fail if a ratio of the same precision is below this")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "compare: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}
