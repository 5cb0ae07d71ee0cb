// Command scaling measures weak scaling on links of a known rate. Workers are processes on hosts of
// their own, network namespaces; Rondo and PyTorch's DistributedDataParallel over Gloo train the
// same model on them by turns. What the same processes compute with nobody to sum with, and what
// the sum alone takes, are measured in the same run.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"rondo/bench/internal/hosts"
)

func main() {
	var c config
	more := c.flags()
	flag.Parse()
	c.Flags = strings.Fields(*more)
	err := c.validate()
	if err == nil && flag.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scaling:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var notes hosts.Notes
	if err := run(ctx, c, os.Stdout, &notes); err != nil {
		if ctx.Err() == nil && notes.String() != "" {
			fmt.Fprintf(os.Stderr, "the processes wrote, at the end:\n%s\n", notes.String())
		}
		fmt.Fprintln(os.Stderr, "scaling:", strings.TrimSpace(err.Error()))
		os.Exit(1)
	}
}
