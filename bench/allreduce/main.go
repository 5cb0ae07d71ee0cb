// Command allreduce lets Rondo's ring (`rondo bench allreduce`) and PyTorch's Gloo
// (bench/peers/gloo_allreduce.py) sum the same buffers by turns on the same cores, and prints how
// long each takes and the ratio of their medians.
package main

import (
	"context"
	"flag"
	"os"

	"rondo/bench/internal/command"
)

func main() {
	var c config
	rondo := flag.String("rondo", "bin/rondo", "the program that is a rank")
	command.Python(&c.Python)
	flag.StringVar(&c.Script, "script", "bench/peers/gloo_allreduce.py", "Gloo's side")
	flag.StringVar(&c.Worlds, "worlds", "2,4", "numbers of ranks, by commas")
	flag.StringVar(&c.Sizes, "sizes", "65536,1048576,16777216", "bytes, by commas")
	flag.StringVar(&c.Link, "link", "tcp", "Rondo's link: tcp, as Gloo's, unix, shm, tls or grpc")
	flag.StringVar(&c.Wire, "wire", "fp32", "what Rondo's numbers travel as: fp32, bf16 or fp16")
	flag.Float64Var(&c.Seconds, "seconds", 2, "how long each side is measured at each size")
	flag.Float64Var(&c.AtLeast, "at-least", 0, "fail if a ratio is below this")
	command.Main("allreduce", func() error {
		c.Rank = []string{*rondo, "bench", "allreduce-rank"}
		if err := command.NoArguments(); err != nil {
			return err
		}
		return c.validate()
	}, func(ctx context.Context) error { return run(ctx, c, os.Stdout, os.Stderr) })
}
