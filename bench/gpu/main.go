// Command gpu measures and tests Rondo on a machine with an NVIDIA GPU. It runs in a folder that
// scripts/gpu.sh packs, with the programs that it starts, and needs neither a network nor a CUDA
// toolkit. It has three commands, each of which ends within nine minutes:
//
//	facts   what must be known first: versions, compiled kernels, the tests of the persistent
//	        kernels, speed beside PyTorch, one job
//	tests   all tests, losses beside the CPU's, the textbook's perplexities, a killed worker
//	tools   the profiler, the sanitizer, every shape beside PyTorch
//
// Each command runs its parts one after another, each with a limit of its own: a part that fails or
// hangs does not lose the others. The results are in one archive, which is written again after each
// part. A part for which this machine lacks a tool is skipped with the reason.
//
// "gpu measure" is what it starts for Rondo's side of the measurements. It may import everything.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := start(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu:", err)
		os.Exit(1)
	}
}
