// Package command is the frame of bench's programs: flags, signals, exit codes. It does not know
// what they measure. It imports nothing of ours.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// The exit codes.
const (
	failed   = 1
	misused  = 2
	finished = 0
)

// Main runs a program whose flags are declared. It parses them and calls ready, which checks flags
// and arguments. Then it calls run, with a context that ends when the process is asked to end. An
// error of ready is a usage error; [flag.ErrHelp] prints the usage.
func Main(name string, ready func() error, run func(context.Context) error) {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := end(ctx, name, os.Stderr, ready, run)
	stop()
	os.Exit(code)
}

// end runs a program and returns its exit code.
func end(
	ctx context.Context, name string, log io.Writer, ready func() error,
	run func(context.Context) error,
) int {
	err := ready()
	switch {
	case errors.Is(err, flag.ErrHelp):
		flag.Usage()
		return misused
	case err != nil:
		fmt.Fprintf(log, "%s: %v\n", name, err)
		return misused
	}
	if err := run(ctx); err != nil {
		fmt.Fprintf(log, "%s: %s\n", name, strings.TrimSpace(err.Error()))
		return failed
	}
	return finished
}

// NoArguments refuses arguments after the flags.
func NoArguments() error {
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	return nil
}

// Python declares the flag of the interpreter that has PyTorch.
func Python(to *string) {
	python := os.Getenv("PYTHON")
	if python == "" {
		python = "bench/peers/.venv/bin/python"
	}
	flag.StringVar(to, "python", python,
		"an interpreter with torch (bench/peers/setup.sh makes one); default: $PYTHON if set")
}

// Corpus takes the arguments of a program that trains: a corpus, and flags of `rondo train`.
func Corpus(corpus *string, extra *[]string) error {
	if flag.NArg() == 0 {
		return flag.ErrHelp
	}
	*corpus, *extra = flag.Arg(0), flag.Args()[1:]
	return nil
}

// CorpusUsage sets the usage text of a program that takes a corpus.
func CorpusUsage(name string) {
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage:", name,
			"[flags] CORPUS [flag of train...]")
		flag.PrintDefaults()
	}
}
