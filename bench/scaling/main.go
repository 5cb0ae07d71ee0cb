// Command scaling measures weak scaling on links of a known rate. Workers are processes on hosts of
// their own, network namespaces. Rondo and PyTorch's DistributedDataParallel over Gloo train the
// same model on them by turns. The same run also measures the steps of processes that do not sum,
// and the sum alone.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"rondo/bench/internal/command"
	"rondo/bench/internal/hosts"
)

func main() {
	var c config
	more := c.flags()
	command.Main("scaling", func() error {
		c.Flags = strings.Fields(*more)
		if err := c.validate(); err != nil {
			return err
		}
		return command.NoArguments()
	}, func(ctx context.Context) error {
		var notes hosts.Notes
		err := run(ctx, c, os.Stdout, &notes)
		if err != nil && ctx.Err() == nil && notes.String() != "" {
			err = fmt.Errorf("%w\nthe processes wrote, at the end:\n%s", err, notes.String())
		}
		return err
	})
}
