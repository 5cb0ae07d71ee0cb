// Command compare trains the same language models with Rondo (`rondo bench train`) and with PyTorch
// (bench/peers/torch_lm.py), by turns on the same cores, and prints how many tokens a second each
// trains on: in float32 and in bfloat16, on one core and on all, PyTorch also compiled.
package main

import (
	"context"
	"flag"
	"os"

	"rondo/bench/internal/command"
)

func main() {
	var c config
	flag.StringVar(&c.Rondo, "rondo", "bin/rondo", "the program to run")
	command.Python(&c.Python)
	flag.StringVar(&c.Script, "script", "bench/peers/torch_lm.py", "PyTorch's side")
	flag.StringVar(&c.Cores, "cores", "0,1",
		"cores to use, by commas; n threads have the first n of them")
	flag.StringVar(&c.Modes, "modes", "eager,compile",
		"how PyTorch runs: eager, compile (which needs a C++ compiler), or both by a comma")
	flag.StringVar(&c.Only, "only", "",
		"measure only shapes whose name contains this, as \"H256\" or \"gru H1024 L2\"")
	flag.StringVar(&c.Precisions, "precisions", "fp32,bf16",
		"precisions to measure: fp32, bf16, or both by a comma")
	flag.IntVar(&c.Turns, "turns", 0,
		"turns of each side; 0: two, and one for large shapes and with -quick")
	flag.BoolVar(&c.Quick, "quick", false, "measure what README's table has, in one turn: the "+
		"textbook's shapes, and on all cores the LSTM of 1024 x 2 units and 10,000 words")
	flag.Float64Var(&c.Seconds, "seconds", 0.5, "length of a window")
	flag.Float64Var(&c.AtLeast, "at-least", 0,
		"fail if a ratio of the same precision is below this")
	command.Main("compare", command.NoArguments, func(ctx context.Context) error {
		return run(ctx, c, os.Stdout, os.Stderr)
	})
}
