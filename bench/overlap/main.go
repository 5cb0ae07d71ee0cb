// Command overlap measures how much of the gradient's sum is hidden behind the backward pass. Two
// workers on two hosts, network namespaces of this machine, train a deep LSTM over shaped links.
// The rate is chosen so that the sum alone takes a given share of the backward pass alone. It
// measures the sum in one piece, with --clip-scope worker, where nothing can overlap, and in
// buckets.
//
// It needs root, and the commands ip and tc (iproute2), nft and unshare.
package main

import (
	"context"
	"flag"
	"os"

	"rondo/bench/internal/command"
)

func main() {
	var c config
	flag.StringVar(&c.rondo, "rondo", "bin/rondo", "the program")
	flag.IntVar(&c.layers, "layers", 4, "recurrent layers")
	flag.IntVar(&c.hidden, "hidden", 128, "hidden units per layer")
	flag.IntVar(&c.batch, "batch", 128, "lanes, of which each worker has half")
	flag.IntVar(&c.bptt, "bptt", 128, "tokens of each lane in a step")
	flag.IntVar(&c.steps, "steps", 40, "of each run; the first quarter does not count")
	flag.Float64Var(&c.share, "share", 0.8, "of backward alone that the sum alone takes")
	flag.Float64Var(&c.most, "at-most", 0, "fail if more of a step than this is exposed; 0: never")
	command.Main("overlap", command.NoArguments, func(ctx context.Context) error {
		return run(ctx, c, os.Stdout)
	})
}
