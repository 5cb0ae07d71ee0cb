// Command gpu measures and tests Rondo on a machine with an NVIDIA GPU. It runs in a folder that
// scripts/gpu.sh packs, with the programs that it starts. It needs no network and no CUDA toolkit.
// It has three commands, each of which ends within nine minutes:
//
//	facts   the basic facts: versions, compiled kernels, the tests of the persistent
//	        kernels, speed beside PyTorch, one job
//	tests   all tests, losses beside the CPU's, the textbook's perplexities, a killed worker
//	tools   the profiler, the sanitizer, every shape beside PyTorch
//
// Each command runs its parts one after another, each with a time limit, so that a part that fails
// or hangs does not lose the others. The results are in one archive, which is written again after
// each part. A part is skipped, with the reason, if this machine lacks a tool for it.
//
// The command "gpu measure" is Rondo's side of the measurements. The package may import
// everything.
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
