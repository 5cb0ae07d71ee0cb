// Command overlap measures how much of the gradient's way around the ring is hidden behind the
// backward pass. Two workers on two hosts, network namespaces of this machine, train a deep LSTM
// over a link that is shaped so that the gradient's way takes a share of the backward pass: in one
// piece, with --clip-scope worker, where nothing can overlap, and in buckets. "The way" is what the
// link's rate alone makes of it in each run: it is the share that was asked for where backward
// takes as long as when the link was shaped.
//
// It needs root, and the commands ip and tc (iproute2), nft and unshare.
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
	flag.StringVar(&c.rondo, "rondo", "bin/rondo", "the program")
	flag.IntVar(&c.layers, "layers", 4, "recurrent layers")
	flag.IntVar(&c.hidden, "hidden", 256, "hidden units per layer")
	flag.IntVar(&c.batch, "batch", 64, "lanes, of which each worker has half")
	flag.IntVar(&c.bptt, "bptt", 64, "tokens of each lane in a step")
	flag.IntVar(&c.steps, "steps", 60, "of each run; the first quarter does not count")
	flag.Float64Var(&c.share, "share", 0.8, "of backward that the gradient's way takes")
	flag.Float64Var(&c.most, "at-most", 0, "fail if more of a step than this is exposed; 0: never")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, c, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "overlap:", err)
		os.Exit(1)
	}
}
