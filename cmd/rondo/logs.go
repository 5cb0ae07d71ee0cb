package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"rondo/internal/app"
	"rondo/internal/printable"
	"rondo/k8s/kube"
)

func logsCommand() *cobra.Command {
	var job string
	how := kube.Logs{}
	c := &cobra.Command{
		Use:   "logs",
		Short: "Show the logs of a job's pods on Kubernetes",
		Long: "Shows the logs of a job's workers and coordinators, or of one --component:\n" +
			"worker, coordinator, observer or etcd (of all jobs of the namespace). A worker\n" +
			"logs when it joins a ring. The leading coordinator logs the progress of the\n" +
			"training, at most every ten seconds.\n\n" +
			"Each line begins with the worker's index, the number in its pod's name, and the\n" +
			"end of that name. A worker keeps its index; its rank changes with the ring\n" +
			"(rondo status shows both).\n\n" +
			"With --follow it goes on, also with later pods, until the job has ended.",
		Example: "  rondo logs --job song -f\n  rondo logs --job song --component coordinator " +
			"--since 10m",
	}
	flags := c.Flags()
	jobName(c, &job)
	flags.StringVar(&how.Component, "component", "", "worker, coordinator, observer or etcd; "+
		"default: workers and coordinators")
	flags.IntVar(&how.Index, "index", -1, "only the worker, or member of etcd, of this "+
		"index; -1: all")
	flags.BoolVarP(&how.Follow, "follow", "f", false, "go on until the job has ended")
	flags.BoolVarP(&how.Previous, "previous", "p", false, "the log of a worker's earlier pod; of "+
		"other pods, of the earlier container")
	flags.BoolVar(&how.Timestamps, "timestamps", false, "begin each line with its time")
	flags.DurationVar(&how.Since, "since", 0, "only lines of this last time, such as 10m; 0: all")
	flags.Int64Var(&how.Tail, "tail", -1, "only this many last lines of each pod; -1: all")
	connect := kube.AddFlags(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkLogs(how); err != nil {
			return err
		}
		cluster, err := connect()
		if err != nil {
			return err
		}
		out := logPrinter{out: cmd.OutOrStdout(), colour: map[kube.LogSource]int{}}
		if terminal := printable.Terminal(out.out); terminal != nil && os.Getenv("NO_COLOR") == "" {
			out.out, out.coloured = terminal, true
		}
		how.Line = out.line
		how.Note = func(text string) { _, _ = fmt.Fprintln(cmd.ErrOrStderr(), text) }
		err = cluster.Logs(cmd.Context(), job, how)
		if how.Follow && errors.Is(err, context.Canceled) {
			return nil // the user has interrupted it
		}
		return err
	}
	return c
}

func checkLogs(how kube.Logs) error {
	switch how.Component {
	case "", kube.Worker, kube.Coordinator, kube.Observer, kube.Etcd:
	default:
		return app.Usagef("--component %q is not worker, coordinator, observer or etcd",
			how.Component)
	}
	switch {
	case how.Index >= 0 && (how.Component == kube.Coordinator || how.Component == kube.Observer):
		return app.Usagef("--index %d: the %s has none", how.Index, how.Component)
	case how.Since < 0:
		return app.Usagef("--since %v: give how long ago, such as 10m", how.Since)
	case how.Since > 0 && how.Since < time.Second:
		return app.Usagef("--since %v is less than a second", how.Since)
	case how.Previous && how.Follow:
		return app.Usagef("--previous reads a log that has ended: leave out --follow")
	}
	return nil
}

// logPrinter writes lines behind their source.
type logPrinter struct {
	out      io.Writer
	coloured bool                   // on a terminal, unless NO_COLOR is set
	width    int                    // of the widest source so far
	colour   map[kube.LogSource]int // in the order of their appearance
}

func (p *logPrinter) line(source kube.LogSource, text string) error {
	name := source.String()
	p.width = max(p.width, len(name))
	name += strings.Repeat(" ", p.width-len(name))
	if p.coloured {
		if _, known := p.colour[source]; !known {
			p.colour[source] = 31 + len(p.colour)%6
		}
		name = fmt.Sprintf("\x1b[%dm%s\x1b[0m", p.colour[source], name)
	}
	_, err := fmt.Fprintf(p.out, "%s | %s\n", name, printable.Text(text))
	return err
}
