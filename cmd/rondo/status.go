package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"rondo/internal/app"
	"rondo/internal/printable"
	"rondo/k8s/kube"
)

// statusOptions are the flags of the command.
type statusOptions struct {
	job        string // empty: all, or the only one
	place      string // the namespace or namespaces, for people
	everywhere bool
	watch      bool
	format     string // "", "wide", "json" or "yaml"
}

func statusCommand() *cobra.Command {
	var o statusOptions
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the jobs of a Kubernetes namespace, or one of them in detail",
		Long: "Lists the jobs of the namespace. With --job, or where there is only one, it\n" +
			"shows the job's progress, pods and coordinators, and its problems with their\n" +
			"remedies. A job without a report for 30 s is unknown.\n\n" +
			"With --watch it shows changes until the job ends.\n\n" +
			"Exit codes for one job: 0 it waits, runs or is done; 1 it has failed, or cannot\n" +
			"start; 3 unknown. For a list: 0.",
	}
	flags := c.Flags()
	flags.StringVar(&o.job, "job", "", "name of the job; default: all, or the only one")
	flags.BoolVarP(&o.everywhere, "all-namespaces", "A", false, "list the jobs of all namespaces")
	flags.BoolVarP(&o.watch, "watch", "w", false, "go on showing what changes until the job ends")
	flags.StringVarP(&o.format, "output", "o", "", "json or yaml, or wide: with more "+
		"columns; default: for people")
	connect := kube.AddFlags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.validate(); err != nil {
			return err
		}
		cluster, err := connect()
		if err != nil {
			return err
		}
		o.place = cluster.String()
		return o.run(cmd.Context(), cluster, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return c
}

func (o statusOptions) validate() error {
	switch {
	case o.format != "" && o.format != formatWide && !o.encoded():
		return app.Usagef("--output %q is not json, yaml or wide", o.format)
	case o.everywhere && o.job != "":
		return app.Usagef("--all-namespaces lists jobs: give --namespace with --job")
	}
	return nil
}

// formatWide is the format for people with more columns.
const formatWide = "wide"

// encoded reports whether the format is for programs.
func (o statusOptions) encoded() bool { return o.format == "json" || o.format == "yaml" }

func (o statusOptions) wide() bool { return o.format == formatWide }

func (o statusOptions) run(ctx context.Context, cluster *kube.Cluster, out, wrong io.Writer) error {
	if !o.watch {
		statuses, one, err := o.look(ctx, cluster)
		if err != nil {
			return err
		}
		if err := o.print(out, statuses, one, time.Now()); err != nil || !one {
			return err
		}
		return verdict(&statuses[0])
	}
	view := newStatusView(out, o)
	var last *kube.JobStatus
	err := cluster.Watch(ctx, func(ctx context.Context) (bool, error) {
		statuses, one, err := o.look(ctx, cluster)
		if err != nil {
			return false, err
		}
		last = nil
		if one {
			last = &statuses[0]
		}
		if view.show(statuses, one, time.Now()) != nil {
			return true, errors.New("the output is closed")
		}
		return last != nil && last.Ended(), nil
	}, onlyNews(wrong))
	switch {
	case errors.Is(err, context.Canceled):
		return nil // the user has interrupted it
	case err == nil && last != nil:
		return verdict(last)
	}
	return err
}

// verdict returns the error that sets the exit code of one job.
func verdict(s *kube.JobStatus) error {
	switch {
	case s.Failed():
		return &app.ToldError{Err: fmt.Errorf("job %s has failed: %s", s.Job, s.Reason)}
	case s.Unknown():
		return &app.ToldError{Err: &app.UnknownError{Text: "job " + s.Job + ": " + s.Reason}}
	}
	return nil
}

// onlyNews prints an error unless it equals the one before.
func onlyNews(out io.Writer) func(error) {
	last := ""
	return func(err error) {
		if err.Error() != last {
			last = err.Error()
			_, _ = fmt.Fprintln(out, last)
		}
	}
}

// look reads one job in detail, or all jobs.
func (o statusOptions) look(ctx context.Context, cluster *kube.Cluster) (
	statuses []kube.JobStatus, one bool, err error) {
	name := o.job
	if name == "" {
		statuses, err = cluster.Statuses(ctx, o.everywhere)
		if err != nil || len(statuses) != 1 || o.everywhere {
			return statuses, false, err
		}
		name = statuses[0].Job
	}
	status, err := cluster.Status(ctx, name)
	if err != nil {
		return nil, false, err
	}
	return []kube.JobStatus{*status}, true, nil
}

// print writes the jobs in the wanted format.
func (o statusOptions) print(out io.Writer, statuses []kube.JobStatus, one bool,
	now time.Time) error {
	switch {
	case o.encoded():
		return o.encode(out, statuses, one)
	case one:
		return o.printStatus(out, statuses[0], now)
	case len(statuses) == 0 && o.everywhere:
		_, err := fmt.Fprintln(out, "no namespace has a job: rondo submit starts one")
		return err
	case len(statuses) == 0:
		_, err := fmt.Fprintf(out, "%s has no jobs: rondo submit starts one, --all-namespaces "+
			"lists those of all\n", o.place)
		return err
	}
	return o.printStatuses(out, statuses, now)
}

func (o statusOptions) encode(out io.Writer, statuses []kube.JobStatus, one bool) error {
	var value any = map[string]any{"jobs": statuses}
	if one {
		value = statuses[0]
	}
	if o.format == "yaml" {
		text, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "---\n%s", text)
		return err
	}
	return json.NewEncoder(out).Encode(value)
}

// A statusView shows one look after the other: on a terminal it replaces the last one, elsewhere it
// appends the changes.
type statusView struct {
	out      io.Writer
	options  statusOptions
	terminal *os.File // nil: it is none
	encoded  string   // the last look in the wanted format
	lines    int      // of the last look on the screen
	told     map[string]bool
	reasons  map[string]string // last printed reason of each job
}

func newStatusView(out io.Writer, o statusOptions) *statusView {
	v := &statusView{out: out, options: o, told: map[string]bool{}, reasons: map[string]string{}}
	if !o.encoded() {
		v.terminal = printable.Terminal(out)
	}
	return v
}

func (v *statusView) show(statuses []kube.JobStatus, one bool, now time.Time) error {
	switch {
	case v.terminal != nil:
		return v.redraw(statuses, one, now)
	case v.options.encoded():
		var text strings.Builder
		if err := v.options.encode(&text, statuses, one); err != nil || text.String() == v.encoded {
			return err
		}
		v.encoded = text.String()
		_, err := io.WriteString(v.out, v.encoded)
		return err
	}
	return v.append(statuses, now)
}
