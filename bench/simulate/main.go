// Command simulate compares the model of `rondo bench simulate` with real rings. It makes hosts,
// network namespaces whose links have a known rate, and starts a process on each. It fits the
// model's latency and bandwidth to rings of two, and prints its predictions for larger rings beside
// measured times.
package main

import (
	"context"
	"flag"
	"os"
	"time"

	"rondo/bench/internal/command"
)

func main() {
	var c config
	flag.StringVar(&c.Rondo, "rondo", "bin/rondo", "the program to run")
	worlds := flag.String("worlds", "4,8,16", "numbers of ranks, by commas")
	rates := flag.String("rates", "25,50,100", "Mb/s that a host sends, by commas: few enough "+
		"that the processors are not what limits the largest ring; 16 ranks on 2 cores need 25")
	sizes := flag.String("sizes", "65536,262144,1048576,4194304", "bytes, by commas")
	seconds := flag.Float64("seconds", 4, "how long a size is measured, at least")
	flag.Float64Var(&c.AtMost, "at-most", 0, "fail if the median error is above this; 0: never")
	command.Main("simulate", func() error {
		for _, list := range []struct {
			name, text string
			to         *[]int
		}{
			{"-worlds", *worlds, &c.Worlds}, {"-rates", *rates, &c.Rates},
			{"-sizes", *sizes, &c.Sizes},
		} {
			var err error
			if *list.to, err = numbers(list.name, list.text); err != nil {
				return err
			}
		}
		c.Window = time.Duration(*seconds * float64(time.Second))
		if err := command.NoArguments(); err != nil {
			return err
		}
		return c.validate()
	}, func(ctx context.Context) error { return run(ctx, c, os.Stdout, os.Stderr) })
}
