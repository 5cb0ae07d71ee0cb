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
	"github.com/spf13/pflag"

	"rondo/cluster/meet"
	"rondo/internal/app"
	"rondo/internal/certs"
	"rondo/internal/printable"
	"rondo/job"
	"rondo/job/jobspec"
	"rondo/job/recipe"
	"rondo/local"
	"rondo/observe"
	rondov1 "rondo/proto/rondo/v1"
	"rondo/telemetry"
	"rondo/worker"
)

// plainInterval is the least time between two step lines without a terminal.
const plainInterval = 2 * time.Second

// trainFlags are the flags of train that are no job's.
type trainFlags struct {
	where                  meet.Config
	localWorkers, restarts int
	limit                  time.Duration // --time; 0: not given
	dashboard              string
	asJSON, verbose        bool
}

func (f *trainFlags) add(set *pflag.FlagSet) {
	set.StringSliceVar(&f.where.Etcd, "etcd", nil,
		"host:port,... of an etcd to use; default: start one for this run")
	set.DurationVar(&f.limit, "time", 0, "choose --hidden, --dropout and --steps, unless they are "+
		"given, so that training takes about this long on this machine, such as 20m; it measures "+
		"the machine for some seconds")
	set.IntVar(&f.localWorkers, "local-workers", -1, "number of --workers on this machine; -1: "+
		"all; the others run on other machines, with --etcd")
	set.IntVar(&f.restarts, "restarts", 10, "number of restarts of worker processes that died")
	set.StringVar(&f.dashboard, "dashboard", "127.0.0.1:0", "ADDRESS:PORT of the job's web "+
		"page; port 0: any free one; off: no page")
	set.BoolVar(&f.asJSON, "json", false, "print one JSON object per line")
	set.BoolVar(&f.verbose, "verbose", false, "log the processes' actions, and show where "+
		"the steps' time goes")
	set.StringVar(&f.where.TLS, "tls", "", "with --etcd: folder that rondo certs made, for "+
		"mutual TLS on every connection")
	set.BoolVar(&f.where.Insecure, "insecure", false, "let other machines reach the page, "+
		"and without --tls the coordinator and the workers, without encryption")
}

func trainCommand() *cobra.Command {
	var own trainFlags
	c := &cobra.Command{
		Use:   "train",
		Short: "Train a model with a coordinator and worker processes on this machine",
		Long: "Train starts etcd (or uses --etcd), a coordinator and --workers processes on\n" +
			"this machine, and shows their progress. Ctrl-C stops all of them after the same\n" +
			"step and saves a checkpoint. The model is kept in --checkpoint-dir, by default in\n" +
			"a new folder runs/JOB-TIME of the current folder.",
	}
	flags := jobspec.AddFlags(c.Flags())
	flags.AddRecipe()
	flags.AutoWorkers(func(spec *rondov1.JobSpec) (int64, error) {
		chosen, err := job.Choose(spec.Device)
		return int64(max(1, len(chosen.GPUs))), err
	})
	own.add(c.Flags())
	groupFlags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		spec, known, notes, err := trainSpec(cmd.Context(), flags, own.limit)
		if err != nil {
			return err
		}
		own.where.Job = spec.Job
		if err := checkPlace(cmd, own.where); err != nil {
			return err
		}
		openPage, err := pageAt(own.dashboard, own.where.Insecure)
		if err != nil {
			return err
		}
		screen := newScreen(cmd.OutOrStdout(), cmd.ErrOrStderr(), own.asJSON, own.verbose)
		for _, note := range notes {
			screen.log(note)
		}
		run := local.Run{
			Spec: spec, Recipe: known, Etcd: own.where.Etcd, TLS: own.where.TLS,
			Insecure: own.where.Insecure, Verbose: own.verbose, LocalWorkers: own.localWorkers,
			Restarts: own.restarts, OpenPage: openPage, Show: screen.show, Log: screen.log,
		}
		outcome, err := run.Train(cmd.Context())
		if err := errors.Join(err, screen.close()); err != nil {
			return err
		}
		if outcome.Stopped && outcome.Checkpoint != "" && !own.asJSON {
			again := resumeCommand(os.Args, spec, own.limit > 0)
			fmt.Fprintf(cmd.OutOrStdout(), "to go on from step %d:\n  %s\n", outcome.Step,
				strings.Join(quoted(again), " "))
		}
		return nil
	}
	return c
}

// trainSpec reads the flags, and lets --time choose what they leave open; 0: it is not given. known
// is the recipe or nil, and notes say what was chosen.
func trainSpec(
	ctx context.Context, flags *jobspec.Flags, limit time.Duration,
) (spec *rondov1.JobSpec, known *recipe.Recipe, notes []string, err error) {
	if spec, err = flags.Spec(); err != nil {
		return nil, nil, nil, err
	}
	if known, err = flags.Recipe(); err != nil {
		return nil, nil, nil, err
	}
	if known != nil {
		notes = []string{fmt.Sprintf("recipe %s: %s (%s)", known.Name, known.Expected, known.Row)}
	}
	if limit != 0 {
		choice, err := within(ctx, flags, spec, limit)
		if err != nil {
			return nil, nil, nil, err
		}
		spec, notes = choice.Spec, append(notes, choice.Why...)
	}
	return spec, known, notes, nil
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
// folder: the same flags, without --inject. chosen: --time, which is left out, has chosen some of
// the spec.
func resumeCommand(args []string, spec *rondov1.JobSpec, chosen bool) []string {
	var again []string
	for i := 0; i < len(args); i++ {
		name, _, joined := strings.Cut(args[i], "=")
		switch name {
		case "--resume", "--inject", "--checkpoint-dir", "--time":
			if !joined {
				i++
			}
		default:
			again = append(again, args[i])
		}
	}
	if chosen {
		again = append(again, jobspec.Arguments(spec)...)
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
