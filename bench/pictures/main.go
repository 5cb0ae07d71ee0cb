// Command pictures draws the cost of a worker's kill, from the steps and kills that `bin/recovery
// -trace` has written. It measures nothing itself. bench/pictures.sh runs both.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"rondo/bench/internal/command"
	"rondo/bench/internal/killtrace"
)

func main() {
	var c chart
	var in, out string
	flag.StringVar(&in, "trace", "", "file of bin/recovery -trace, with the jobs to draw")
	flag.StringVar(&out, "out", "docs/pictures/kill.svg", "picture to write")
	flag.StringVar(&c.note, "note", "", "lines of the caption: machine and versions")
	flag.Float64Var(&c.before, "before", 4, "seconds to draw before the kill")
	flag.Float64Var(&c.after, "after", 16, "seconds to draw after it")
	command.Main("pictures", func() error {
		if c.before <= 0 || c.after <= 0 {
			return fmt.Errorf("-before %v -after %v: give more than 0", c.before, c.after)
		}
		return command.NoArguments()
	}, func(context.Context) error {
		jobs, err := killtrace.Read(in)
		if err != nil {
			return err
		}
		svg, err := c.draw(jobs)
		if err != nil {
			return fmt.Errorf("%s: %w", in, err)
		}
		return os.WriteFile(out, svg, 0o644)
	})
}
