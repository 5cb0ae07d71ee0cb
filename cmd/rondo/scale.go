package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"rondo/cluster"
	"rondo/cluster/meet"
	"rondo/cluster/rpc"
	"rondo/coordinator"
	"rondo/internal/app"
	"rondo/internal/certs"
	"rondo/k8s/kube"
	rondov1 "rondo/proto/rondo/v1"
)

// A namedJob is the place of the job that the flags name.
type namedJob struct {
	cfg     meet.Config
	connect func() (*kube.Cluster, error)
}

// jobFlags defines the flags that name a running job: in an etcd that this machine reaches, or in a
// Kubernetes cluster.
func jobFlags(c *cobra.Command) *namedJob {
	n := &namedJob{cfg: meet.Config{Role: certs.User}}
	c.Flags().StringSliceVar(&n.cfg.Etcd, "etcd", nil, "host:port,... of etcd; default: the job "+
		"is one in a Kubernetes cluster")
	c.Flags().StringVar(&n.cfg.TLS, "tls", "", "with --etcd: folder that rondo certs made, "+
		"for mutual TLS to etcd and the coordinator")
	jobName(c, &n.cfg.Job)
	n.connect = kube.AddFlags(c)
	return n
}

// jobName defines --job.
func jobName(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "job", "rondo", "name of the job")
}

// inCluster reports whether the job is in Kubernetes.
func (n *namedJob) inCluster() bool { return len(n.cfg.Etcd) == 0 }

// cluster connects to Kubernetes. If there is none, the error mentions --etcd.
func (n *namedJob) cluster() (*kube.Cluster, error) {
	there, err := n.connect()
	var wrong *app.UsageError
	if err != nil && !errors.As(err, &wrong) {
		err = fmt.Errorf("%w; for a job without Kubernetes give --etcd HOST:PORT", err)
	}
	return there, err
}

type lookFunc func(cfg meet.Config, registry cluster.Registry, view cluster.View) error

// look calls look with the client of the etcd that --etcd names, and the job's state there.
func (n *namedJob) look(ctx context.Context, look lookFunc) error {
	cfg := n.cfg
	if err := cfg.Validate(); err != nil {
		return app.Usage(err)
	}
	store, err := cfg.Store(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	view, err := store.View(ctx)
	if errors.Is(err, cluster.ErrNoSpec) {
		return app.Usagef("--job %s: this etcd has no job of that name", cfg.Job)
	}
	if err != nil {
		return err
	}
	return look(cfg, store, view)
}

// saying prints a command's progress, one line each.
func saying(cmd *cobra.Command) func(string) {
	return func(text string) { _, _ = fmt.Fprintln(cmd.OutOrStdout(), text) }
}

func scaleCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "scale N",
		Short: "Set the number of workers of a running job",
		Long: "Sets the number of workers of a running job, from --min-workers to --batch.\n\n" +
			"In Kubernetes (without --etcd) it changes the Job of the workers, so that there\n" +
			"are N pods, and waits until all are in the ring; surplus workers hand their lanes\n" +
			"over and end.\n\n" +
			"With --etcd it sets the largest size of the ring. If the ring is larger, some\n" +
			"workers become spares at the end of the step; if it is smaller, spares and new\n" +
			"workers join. If rondo train runs all of the job's workers on its machine, it\n" +
			"starts more processes there for a larger N. Otherwise (rondo train\n" +
			"--local-workers, bin/worker) no process is started: start more workers\n" +
			"yourself. A smaller N ends no process.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return app.Usagef("%d arguments; give the number of workers (see `%s --help`)",
					len(args), cmd.CommandPath())
			}
			return nil
		},
	}
	named := jobFlags(c)
	timeout := c.Flags().Duration("timeout", 5*time.Minute, "in Kubernetes: how long to wait for "+
		"the ring to have N workers; 0: not at all")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		workers, err := strconv.Atoi(args[0])
		if err != nil {
			return app.Usagef("%q is not a number of workers (see `%s --help`)", args[0],
				cmd.CommandPath())
		}
		if named.inCluster() {
			there, err := named.cluster()
			if err != nil {
				return err
			}
			return there.Scale(cmd.Context(), named.cfg.Job, kube.Scale{Workers: workers,
				Fits: func(spec *rondov1.JobSpec, workers int) error {
					return coordinator.JobOf(spec).CheckScale(workers)
				}, Timeout: *timeout, Say: saying(cmd)})
		}
		return named.look(cmd.Context(), func(cfg meet.Config, registry cluster.Registry,
			view cluster.View) error {
			if err := scale(cmd.Context(), cfg, registry, view, workers); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "job %s: the ring has at most %d from now "+
				"on; registered workers: %d\n", cfg.Job, workers, len(view.Members))
			return err
		})
	}
	return c
}

// scale asks the job's leader.
func scale(ctx context.Context, cfg meet.Config, registry cluster.Registry, view cluster.View,
	workers int) error {
	if view.Plan.Phase == cluster.Ended {
		return fmt.Errorf("job %s has ended: %s", cfg.Job, view.Plan.Reason)
	}
	client, err := cfg.Client(registry, 0)
	if err != nil {
		return err
	}
	err = client.Scale(ctx, workers)
	var refused *rpc.RefusedError
	if errors.As(err, &refused) && refused.Wrong() {
		return app.Usage(err)
	}
	return err
}
