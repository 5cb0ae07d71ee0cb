// Command textbook trains the language models of Dive into Deep Learning's chapters on recurrent
// networks, with their settings and on the corpus that it is given (The Time Machine, for figures
// to compare with the book's), and holds the training perplexity of the last epoch against limits.
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
	flag.StringVar(&c.Only, "only", "", "run only the cases whose name contains this")
	flag.IntVar(&c.Epochs, "epochs", bookEpochs, "passes over the corpus; the limits are for 500")
	flag.IntVar(&c.Workers, "workers", 2, "worker processes")
	flag.StringVar(&c.Precision, "precision", "fp32", "what products multiply: fp32 or bf16")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: textbook [flags] CORPUS [flag of train...]")
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
		fmt.Fprintln(os.Stderr, "textbook:", err)
		os.Exit(1)
	}
}
