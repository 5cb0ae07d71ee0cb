// Command textbook trains the language models of Dive into Deep Learning's chapters on recurrent
// networks, with their settings and on the corpus that it is given (The Time Machine, for figures
// to compare with the book's), and holds the training perplexity of the last epoch against limits.
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
	flag.StringVar(&c.Only, "only", "", "run only the cases whose name contains this")
	flag.IntVar(&c.Epochs, "epochs", bookEpochs, "passes over the corpus; the limits are for 500")
	flag.IntVar(&c.Workers, "workers", 2, "worker processes")
	flag.StringVar(&c.Precision, "precision", "fp32", "what products multiply: fp32 or bf16")
	command.CorpusUsage("textbook")
	command.Main("textbook", func() error { return command.Corpus(&c.Corpus, &c.Extra) },
		func(ctx context.Context) error { return run(ctx, c, os.Stdout, os.Stderr) })
}
