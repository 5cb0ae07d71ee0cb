// Command compression trains one model with each way of sending gradients, with one seed and the
// same number of tokens. It prints each one's validation loss beside that of float32, and the bytes
// that went over the loopback interface.
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
	flag.StringVar(&c.Only, "only", "", "run only fp32 and the cases whose flags contain this")
	flag.IntVar(&c.Steps, "steps", 3000, "of 32 lanes of 35 tokens each")
	flag.IntVar(&c.Workers, "workers", 2, "worker processes")
	flag.Float64Var(&c.Limit, "within", 0.01, "how far above float32's the loss may be, as a share")
	flag.StringVar(&c.Counters, "counters", "/proc/net/dev", "the kernel's counters")
	command.CorpusUsage("compression")
	command.Main("compression", func() error { return command.Corpus(&c.Corpus, &c.Extra) },
		func(ctx context.Context) error { return run(ctx, c, os.Stdout, os.Stderr) })
}
