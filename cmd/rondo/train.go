package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"rondo/cluster/meet"
	"rondo/internal/app"
	"rondo/internal/certs"
	"rondo/internal/printable"
	"rondo/job"
	"rondo/job/jobspec"
	"rondo/local"
	"rondo/observe"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
	"rondo/worker"
)

// plainInterval is the least time between two step lines without a terminal.
const plainInterval = 2 * time.Second

func trainCommand() *cobra.Command {
	var where meet.Config
	var localWorkers, restarts int
	var dashboard string
	var asJSON, verbose bool
	c := &cobra.Command{
		Use:   "train",
		Short: "Train a model with a coordinator and worker processes on this machine",
		Long: "Train starts etcd (or uses --etcd), a coordinator and --workers processes on\n" +
			"this machine, and shows their progress. Ctrl-C stops all of them after the same\n" +
			"step and saves a checkpoint. The model is kept in --checkpoint-dir, by default in\n" +
			"a new folder runs/JOB-TIME of the current folder.",
	}
	flags := jobspec.AddFlags(c.Flags())
	flags.AutoWorkers(func(spec *rondov1.JobSpec) (int64, error) {
		chosen, err := job.Choose(spec.Device)
		return int64(max(1, len(chosen.GPUs))), err
	})
	c.Flags().StringSliceVar(&where.Etcd, "etcd", nil,
		"host:port,... of an etcd to use; default: start one for this run")
	c.Flags().IntVar(&localWorkers, "local-workers", -1, "number of --workers on this machine; "+
		"-1: "+
		"all; the others run on other machines, with --etcd")
	c.Flags().IntVar(&restarts, "restarts", 10, "number of restarts of worker processes that died")
	c.Flags().StringVar(&dashboard, "dashboard", "127.0.0.1:0", "ADDRESS:PORT of the job's web "+
		"page; port 0: any free one; off: no page")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line")
	c.Flags().BoolVar(&verbose, "verbose", false, "log the processes' actions, and show where "+
		"the steps' time goes")
	c.Flags().StringVar(&where.TLS, "tls", "", "with --etcd: folder that rondo certs made, for "+
		"mutual TLS on every connection")
	c.Flags().BoolVar(&where.Insecure, "insecure", false, "let other machines reach the page, "+
		"and without --tls the coordinator and the workers, without encryption")
	groupFlags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		spec, err := flags.Spec()
		if err != nil {
			return err
		}
		where.Job = spec.Job
		if err := checkPlace(cmd, where); err != nil {
			return err
		}
		openPage, err := pageAt(dashboard, where.Insecure)
		if err != nil {
			return err
		}
		screen := newScreen(cmd.OutOrStdout(), cmd.ErrOrStderr(), asJSON, verbose)
		run := local.Run{
			Spec: spec, Etcd: where.Etcd, TLS: where.TLS, Insecure: where.Insecure,
			Verbose: verbose, LocalWorkers: localWorkers, Restarts: restarts, OpenPage: openPage,
			Show: screen.show, Log: screen.log,
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

// checkPlace checks the flags that say where the job is.
func checkPlace(cmd *cobra.Command, where meet.Config) error {
	switch {
	case cmd.Flags().Changed("etcd"):
		if err := where.Validate(); err != nil {
			return app.Usage(err)
		}
		return where.CheckListeners(cmd.Context())
	case where.TLS != "":
		return app.Usagef("--tls %s: it is for --etcd; without that, nothing leaves this machine",
			where.TLS)
	}
	return nil
}

// pageAt opens a job's web page at --dashboard; nil: off.
func pageAt(
	address string, insecure bool,
) (func(ctx context.Context, spec *rondov1.JobSpec) (local.Page, error), error) {
	if address == "off" {
		return nil, nil
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return nil, app.Usagef("--dashboard %q is not off or ADDRESS:PORT: %w", address, err)
	}
	if certs.Exposed(address) && !insecure {
		return nil, app.Usagef("--dashboard %s is open to other machines, and the page is plain "+
			"HTTP: give --insecure to let anybody there read it", address)
	}
	return func(ctx context.Context, spec *rondov1.JobSpec) (local.Page, error) {
		page, err := observe.OpenPage(ctx, address, spec)
		if err != nil {
			return nil, fmt.Errorf("--dashboard %s: %w", address, err)
		}
		return page, nil
	}, nil
}

// resumeCommand is the command line that resumes a stopped job from the newest checkpoint in its
// folder: the same flags, without --inject.
func resumeCommand(args []string, spec *rondov1.JobSpec) []string {
	var again []string
	for i := 0; i < len(args); i++ {
		name, _, joined := strings.Cut(args[i], "=")
		switch name {
		case "--resume", "--inject", "--checkpoint-dir":
			if !joined {
				i++
			}
		default:
			again = append(again, args[i])
		}
	}
	return append(again, "--checkpoint-dir", spec.CheckpointDir, "--resume", "auto")
}

// workerCommand runs a worker process for train: cmd/worker in the same binary.
func workerCommand() *cobra.Command {
	c := worker.Command()
	c.Hidden = true
	return c
}

// quoted quotes words for a shell.
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

// screen shows a job: events on standard output, logs on standard error, one at a time.
type screen struct {
	mu     sync.Mutex
	view   telemetry.View
	bar    bool
	stderr io.Writer
}

func newScreen(stdout, stderr io.Writer, asJSON, verbose bool) *screen {
	s := &screen{stderr: stderr}
	terminal := printable.Terminal(stdout)
	switch {
	case asJSON:
		s.view = telemetry.NewJSONView(stdout)
	case !verbose && terminal != nil:
		s.view, s.bar = telemetry.NewBarView(terminal, time.Now), true
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

// log writes a line to standard error, above the progress bar if there is one.
func (s *screen) log(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bar {
		_ = s.view.Show(telemetry.Notice{Text: line}) // without a terminal the line is lost
		return
	}
	fmt.Fprintln(s.stderr, line)
}

func (s *screen) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view.Close()
}
