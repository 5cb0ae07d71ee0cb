// Command gpu runs, on a machine with an NVIDIA GPU, what needs one: the tests of compute/cuda on
// the real device, whole training jobs beside the same jobs on the CPU, compute-sanitizer, and how
// fast a step is beside PyTorch with cuDNN. It stands in a folder that scripts/gpu.sh packs, with
// the programs that it starts. Every part has its own limit of time, so that one that fails or
// hangs does not lose the others, and the results so far are always in a JSON file.
//
// "gpu measure" is what it starts for Rondo's side of the measurements. It may import everything.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, arguments []string) error {
	if len(arguments) > 0 && arguments[0] == "measure" {
		return measureCommand(ctx, arguments[1:], os.Stdout)
	}
	var c config
	var minutes float64
	set := flag.NewFlagSet("gpu", flag.ContinueOnError)
	set.StringVar(&c.Folder, "folder", ".", "where the programs lie that it starts")
	set.StringVar(&c.Out, "out", "results", "folder for results.json and the parts' logs")
	set.StringVar(&c.Python, "python", "python3", "interpreter with torch, for the peer")
	set.StringVar(&c.Text, "text", "", "The Time Machine: train the textbook's models on it, too")
	set.StringVar(&c.Only, "only", "", "run these parts, by commas: "+strings.Join(names(), ","))
	set.Float64Var(&minutes, "minutes", 9.5, "for all parts together")
	if err := set.Parse(arguments); err != nil {
		return err
	}
	c.Limit = time.Duration(minutes * float64(time.Minute))
	for _, path := range []*string{&c.Folder, &c.Out, &c.Text} {
		if absolute, err := filepath.Abs(*path); *path != "" && err == nil {
			*path = absolute
		}
	}
	return run(ctx, c, os.Stdout)
}
