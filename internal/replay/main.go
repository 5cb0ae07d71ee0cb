// Command replay runs a Go program that was compiled for WebAssembly (GOOS=wasip1), so that only
// the program and its arguments decide what it does:
//
//	replay PROGRAM [ARGUMENT ...]
//
// Such a program has one thread and no preemption by time. It takes the numbers that order maps,
// select and goroutines from its host. This host gives the same numbers in each run, and clocks
// that go on by a microsecond whenever they are read. Files are this machine's. The package imports
// nothing of this module.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/tetratelabs/wazero/sys"
)

func main() {
	err := errors.New("usage: replay PROGRAM [ARGUMENT ...]")
	if len(os.Args) > 1 {
		err = run(context.Background(), os.Args[1:])
	}
	var exit *sys.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(int(exit.ExitCode()))
	case err != nil:
		fmt.Fprintln(os.Stderr, "replay:", err)
		os.Exit(1)
	}
}
