package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"rondo/cmd/internal/app"
	"rondo/cmd/internal/job"
	"rondo/cmd/internal/local"
	"rondo/cmd/internal/meet"
	"rondo/cmd/internal/worker"
	"rondo/internal/jobspec"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
)

// plainInterval is the least time between two step lines where there is no terminal.
const plainInterval = 2 * time.Second

func trainCommand() *cobra.Command {
	var etcd []string
	var localWorkers, restarts int
	var asJSON bool
	var verbose bool
	c := &cobra.Command{
		Use:   "train",
		Short: "Train a model with a coordinator and worker processes on this machine",
		Long: "Train starts etcd (or uses --etcd), a coordinator and --workers processes on\n" +
			"this machine, and shows what they do. Ctrl-C stops them all after the same step\n" +
			"and saves a checkpoint.",
	}
	flags := jobspec.AddFlags(c.Flags())
	flags.AutoWorkers(func(spec *rondov1.JobSpec) (int64, error) {
		chosen, err := job.Choose(spec.Device)
		return int64(max(1, len(chosen.GPUs))), err
	})
	c.Flags().StringSliceVar(&etcd, "etcd", nil,
		"host:port,... of an etcd to use; default: one of our own, for this run")
	c.Flags().IntVar(&localWorkers, "local-workers", -1, "how many of the --workers run on this "+
		"machine; -1: all; the others come from elsewhere, with --etcd")
	c.Flags().IntVar(&restarts, "restarts", 10, "how many worker processes that died are started "+
		"again")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	c.Flags().BoolVar(&verbose, "verbose", false, "log what the processes do, and say where "+
		"the steps' time goes")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		spec, err := flags.Spec()
		if err != nil {
			return err
		}
		if cmd.Flags().Changed("etcd") {
			where := meet.Config{Etcd: etcd, Job: spec.Job}
			if err := where.Validate(); err != nil {
				return app.Usage(err)
			}
		}
		screen := newScreen(cmd.OutOrStdout(), cmd.ErrOrStderr(), asJSON, verbose)
		run := local.Run{
			Spec: spec, Etcd: etcd, Verbose: verbose, LocalWorkers: localWorkers,
			Restarts: restarts,
			Show:     screen.show, Log: screen.log,
		}
		outcome, err := run.Train(cmd.Context())
		if err := errors.Join(err, screen.close()); err != nil {
			return err
		}
		if outcome.Stopped && outcome.Checkpoint != "" && !asJSON {
			again := resumeCommand(os.Args, spec)
			fmt.Fprintf(cmd.OutOrStdout(), "to go on from step %d:\n  %s\n", outcome.Step,
				strings.Join(quoted(again), " "))
		}
		return nil
	}
	return c
}

// resumeCommand is the command line with which a job that was stopped goes on: the same, but from
// its newest checkpoint, and where that is if the command did not say, and without the faults that
// were rehearsed.
func resumeCommand(args []string, spec *rondov1.JobSpec) []string {
	var again []string
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--resume", args[i] == "--inject":
			i++
		case strings.HasPrefix(args[i], "--resume="), strings.HasPrefix(args[i], "--inject="):
		default:
			again = append(again, args[i])
		}
	}
	if spec.Resume != "auto" {
		again = append(again, "--resume", "auto")
	}
	if spec.CheckpointDir == "" {
		again = append(again, "--checkpoint-dir", spec.StopDir)
	}
	return again
}

// workerCommand is what train starts: cmd/worker in the same binary.
func workerCommand() *cobra.Command {
	c := worker.Command()
	c.Hidden = true
	return c
}

// quoted writes words as a shell reads them.
func quoted(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = w
		if w == "" || strings.ContainsAny(w, " \t\n'\"\\$`*?[]{}()<>|&;#~!") {
			out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return out
}

// screen is where a job shows: events on standard output, logs on standard error, one at a time.
type screen struct {
	mu     sync.Mutex
	view   telemetry.View
	bar    bool
	stderr io.Writer
}

func newScreen(stdout, stderr io.Writer, asJSON, verbose bool) *screen {
	s := &screen{stderr: stderr}
	file, isFile := stdout.(*os.File)
	switch {
	case asJSON:
		s.view = telemetry.NewJSONView(stdout)
	case !verbose && isFile && term.IsTerminal(int(file.Fd())):
		s.view, s.bar = telemetry.NewBarView(stdout, time.Now), true
	default:
		plain := telemetry.NewPlainView(stdout, plainInterval, time.Now)
		plain.Times = verbose
		s.view = plain
	}
	return s
}

func (s *screen) show(_ context.Context, e telemetry.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view.Show(e)
}

// log writes a line to standard error; while a bar is drawn, above the bar.
func (s *screen) log(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar {
		_ = s.view.Show(telemetry.Notice{Text: line}) // a terminal that is gone loses its log
		return
	}
	fmt.Fprintln(s.stderr, line)
}

func (s *screen) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view.Close()
}
