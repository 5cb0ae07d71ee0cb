// Package app runs a command line for the three commands. It turns errors into one line on standard
// error and an exit code, and signals into a cancelled context. If the platform asks for a
// termination message, it gets that line too. It may import job/jobspec and cobra, and knows
// nothing of jobs beyond their errors.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"

	"rondo/internal/printable"
	"rondo/job/jobspec"
)

// The exit codes.
const (
	ExitFailure = 1 // this process failed; a retry may succeed
	ExitUsage   = 2 // the user's input is wrong; a retry is useless
	ExitJob     = 3 // this process's job has failed; a retry is useless
	ExitLeft    = 4 // the process was asked to leave before the job's end; the others go on
	ExitUnknown = 3 // of `rondo status`: the job's state cannot be determined
)

// A UsageError marks an error in the user's input, for example a corpus that does not exist.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Usage marks err as a UsageError. It returns nil for nil.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &UsageError{Err: err}
}

// Usagef makes a UsageError.
func Usagef(format string, a ...any) error { return Usage(fmt.Errorf(format, a...)) }

// A JobError marks the failure of a whole job, in a process that is only a part of it.
type JobError struct{ Err error }

func (e *JobError) Error() string { return e.Err.Error() }
func (e *JobError) Unwrap() error { return e.Err }

// A LeftError says that a process was asked to leave before the job's end.
type LeftError struct{ Text string }

func (e *LeftError) Error() string { return e.Text }

// An UnknownError says that a command cannot determine a job's state.
type UnknownError struct{ Text string }

func (e *UnknownError) Error() string { return e.Text }

// A ToldError is an error that the user has seen already. It decides the exit code but is not
// printed.
type ToldError struct{ Err error }

func (e *ToldError) Error() string { return e.Err.Error() }
func (e *ToldError) Unwrap() error { return e.Err }

// Main runs the command with the process's arguments and returns its exit code. The command's
// context ends at SIGINT, SIGTERM or SIGHUP; a second signal ends the process. gRPC's log stays
// silent unless its own variable enables it, because its problems appear in our errors.
func Main(root *cobra.Command) int {
	if os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL") == "" {
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM,
		syscall.SIGHUP)
	defer stop()
	signal.Ignore(syscall.SIGPIPE) // so that writing to a closed pipe is an ordinary error
	context.AfterFunc(ctx, func() { endAtSecond(stop) })
	root.SetOut(printable.Out(os.Stdout))
	return Run(ctx, root, os.Args[1:], &printable.Writer{Writer: os.Stderr})
}

// endAtSecond restores the signals' default action, which ends the process. In a container's first
// process the default is to ignore them, so it handles the second signal itself.
func endAtSecond(restore func()) {
	if os.Getpid() != 1 {
		restore()
		return
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	restore()
	if number, ok := (<-again).(syscall.Signal); ok {
		os.Exit(signalled + int(number))
	}
}

// signalled is the number that a shell adds to the signal that ended a process.
const signalled = 128

// Run is Main with explicit context, arguments and standard error.
func Run(ctx context.Context, root *cobra.Command, args []string, stderr io.Writer) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetArgs(args)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var wrong *jobspec.UsageError
		if errors.As(err, &wrong) {
			return wrong
		}
		var bad *pflag.InvalidValueError
		if errors.As(err, &bad) {
			if should := shouldBe(bad.GetFlag()); should != "" {
				return Usagef("--%s %q is not %s", bad.GetFlag().Name, bad.GetValue(), should)
			}
		}
		return Usagef("%w%s (see `%s --help`)", err, meant(cmd, err), cmd.CommandPath())
	})
	refuseArguments(root)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		if text := command.Annotations[summary]; text != "" {
			lastWord(stderr, text+peakMemory())
		}
		return 0
	}
	text := fmt.Sprintf("%s: %s", command.CommandPath(), oneLine(err))
	var told *ToldError
	if !errors.As(err, &told) {
		fmt.Fprintln(stderr, text)
	}
	lastWord(stderr, text)
	return exitCode(err)
}

// shouldBe describes the values of a flag, in the words of package jobspec; empty: the error of the
// flag's own type does.
func shouldBe(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "duration":
		return "a duration such as 10s or 5m"
	case "int", "int64", "uint64":
		return "a whole number"
	case "float64":
		return "a number"
	case "bool":
		return "true or false"
	}
	return ""
}

// mostMeant bounds the flags that are suggested for one that does not exist.
const mostMeant = 4

// meant suggests flags for one that does not exist: those that share whole words with it, as
// --batch with --batch-size, or begin their help with it (--learning-rate), or else the nearest.
func meant(cmd *cobra.Command, err error) string {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return ""
	}
	wrong := unknown.GetSpecifiedName()
	var names, near []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		names = append(names, f.Name)
		if strings.HasPrefix(f.Name, wrong+"-") || strings.HasPrefix(wrong, f.Name+"-") ||
			strings.HasSuffix(wrong, "-"+f.Name) ||
			strings.HasPrefix(f.Usage, strings.ReplaceAll(wrong, "-", " ")+";") {
			near = append(near, "--"+f.Name)
		}
	})
	if len(near) == 0 || len(near) > mostMeant {
		nearest := jobspec.Nearest(wrong, names)
		if nearest == "" {
			return ""
		}
		near = []string{"--" + nearest}
	}
	return ", did you mean " + strings.Join(near, " or ") + "?"
}

// refuseArguments makes unexpected arguments, or too few, a usage error, in all subcommands.
func refuseArguments(c *cobra.Command) {
	for _, sub := range c.Commands() {
		refuseArguments(sub)
	}
	c.SuggestionsMinimumDistance = 2
	if !c.Runnable() {
		c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if count := c.Args; count != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := count(cmd, args); err != nil {
				return Usagef("%w (see `%s --help`)", err, cmd.CommandPath())
			}
			return nil
		}
		return
	}
	c.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return nil
		case !cmd.HasAvailableSubCommands():
			return Usagef("unexpected argument %q (see `%s --help`)", args[0], cmd.CommandPath())
		}
		text := fmt.Sprintf("unknown command %q", args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			text += ", did you mean " + strings.Join(near, " or ") + "?"
		}
		return Usagef("%s (see `%s --help`)", text, cmd.CommandPath())
	}
}

// Require makes missing flags a usage error.
func Require(c *cobra.Command, names ...string) {
	c.PreRunE = func(cmd *cobra.Command, _ []string) error {
		for _, name := range names {
			if !cmd.Flags().Changed(name) {
				return Usagef("--%s is needed (see `%s --help`)", name, cmd.CommandPath())
			}
		}
		return nil
	}
}

func exitCode(err error) int {
	var wrong *UsageError
	var spec *jobspec.UsageError
	var failed *JobError
	var left *LeftError
	var unknown *UnknownError
	switch {
	case errors.As(err, &wrong) || errors.As(err, &spec):
		return ExitUsage
	case errors.As(err, &failed):
		return ExitJob
	case errors.As(err, &left):
		return ExitLeft
	case errors.As(err, &unknown):
		return ExitUnknown
	}
	return ExitFailure
}

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
