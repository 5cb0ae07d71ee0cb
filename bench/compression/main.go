// Command compression trains one model with each of the ways in which gradients can travel, with
// one seed and for as many tokens, and prints the validation loss beside that of float32, and the
// bytes that went over the loopback interface.
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
	flag.StringVar(&c.Rondo, "rondo", "bin/rondo", "the program to run")
	flag.StringVar(&c.Only, "only", "", "run only fp32 and the cases whose flags contain this")
	flag.IntVar(&c.Steps, "steps", 3000, "of 32 lanes of 35 tokens each")
	flag.IntVar(&c.Workers, "workers", 2, "worker processes")
	flag.Float64Var(&c.Limit, "within", 0.01, "how far above float32's the loss may be, as a share")
	flag.StringVar(&c.Counters, "counters", "/proc/net/dev", "the kernel's counters")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(),
			"usage: compression [flags] CORPUS [flag of train...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	c.Corpus, c.Extra = flag.Arg(0), flag.Args()[1:]

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "compression:", err)
		os.Exit(1)
	}
}
