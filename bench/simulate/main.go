// Command simulate holds the model of `rondo bench simulate` against real rings. It makes hosts,
// network namespaces whose links have a known rate, and starts a process on each; fits the model's
// latency and bandwidth to rings of two; and prints what it predicts of larger rings beside what
// they take.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
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
	flag.Parse()
	var err error
	if flag.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	for _, list := range []struct {
		name, text string
		to         *[]int
	}{{"-worlds", *worlds, &c.Worlds}, {"-rates", *rates, &c.Rates}, {"-sizes", *sizes, &c.Sizes}} {
		if err == nil {
			*list.to, err = numbers(list.name, list.text)
		}
	}
	c.Window = time.Duration(*seconds * float64(time.Second))
	if err == nil {
		err = c.validate()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "simulate:", strings.TrimSpace(err.Error()))
		os.Exit(1)
	}
}
