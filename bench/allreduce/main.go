// Command allreduce lets Rondo's ring (`rondo bench allreduce`) and PyTorch's Gloo
// (bench/peers/gloo_allreduce.py) sum the same buffers by turns on the same cores, and prints how
// long each takes and the ratio of their medians.
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
	rondo := flag.String("rondo", "bin/rondo", "the program that is a rank")
	flag.StringVar(&c.Python, "python", python,
		"an interpreter with torch (bench/peers/setup.sh makes one); default: $PYTHON if set")
	flag.StringVar(&c.Script, "script", "bench/peers/gloo_allreduce.py", "Gloo's side")
	flag.StringVar(&c.Worlds, "worlds", "2,4", "numbers of ranks, by commas")
	flag.StringVar(&c.Sizes, "sizes", "65536,1048576,16777216", "bytes, by commas")
	flag.StringVar(&c.Link, "link", "tcp", "Rondo's link: tcp, as Gloo's, unix or shm")
	flag.StringVar(&c.Wire, "wire", "fp32", "what Rondo's numbers travel as: fp32, bf16 or fp16")
	flag.Float64Var(&c.Seconds, "seconds", 2, "how long each side is measured at each size")
	flag.Float64Var(&c.AtLeast, "at-least", 0, "fail if a ratio is below this")
	flag.Parse()
	c.Rank = []string{*rondo, "bench", "allreduce-rank"}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "allreduce: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := c.validate(); err != nil {
		fmt.Fprintln(os.Stderr, "allreduce:", err)
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "allreduce:", err)
		os.Exit(1)
	}
}
